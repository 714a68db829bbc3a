"""Checks of a node, one per file; each offers `check(settings) -> Finding` and runs in a process of its
own."""
