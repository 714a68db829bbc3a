"""How a verb reports success to the engine that runs it on another machine."""

DONE = "done"
"""Printed by verbs that print nothing else: srun may exit with 0 although its machine died."""
NO_INIT = 4
"""Exit code of ``restart`` if no init runs."""
