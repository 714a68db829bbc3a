"""How a machine becomes a node of a run, and what engines run on it for that."""
