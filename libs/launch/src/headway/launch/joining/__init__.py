"""How machines become nodes of a run: tokens, what they get, and the folders they make of it."""
