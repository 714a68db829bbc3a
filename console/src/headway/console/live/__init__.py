"""Following a run while it is live, and its summary."""
