"""How a machine becomes a node of a run, and the commands that engines run on it."""
