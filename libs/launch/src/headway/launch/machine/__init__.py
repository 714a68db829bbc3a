"""The commands that engines run on a machine."""
