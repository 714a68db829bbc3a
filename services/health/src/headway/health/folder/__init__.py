"""Diagnosis of a folder in which anybody has collected dumps, logs, stacks and counters."""
