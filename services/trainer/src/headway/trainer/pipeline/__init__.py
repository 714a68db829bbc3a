"""Runs any schedule of a pipeline: its operations, and the keys of its messages."""
