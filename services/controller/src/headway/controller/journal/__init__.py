"""The file of a run: what happened, in order, written by one driver at a time."""
