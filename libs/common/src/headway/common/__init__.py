"""The vocabulary of Headway: plans, messages, shared memory and processes. Never imports torch."""
