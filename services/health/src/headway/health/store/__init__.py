"""What a run keeps of its flight records: one file per node and minute, within a limit of disk.

``write`` is a program that lives for a second and then ends, so that the agent never imports
polars and never waits for a disk. ``child`` starts it.
"""
