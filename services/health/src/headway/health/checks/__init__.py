"""Checks of a node, one per file, each run in its own process.

Each file has `check(settings) -> Finding`, the command; what it measures, as plain data; and
`judge(measured, settings) -> Finding`, which decides and touches nothing. So recorded measurements
of good and bad machines are judged by tests (``tests/checks/recorded``).
"""
