"""The operations of a run: what can be asked of it."""
