"""Checks of a node, one per file: `check(settings) -> Finding`, each run in its own process."""
