"""Starting a run, and ending it."""
