"""What verbs answer beside their output, for who runs them on another machine."""

DONE = "done"
"""Output of verbs without another one: srun may exit with 0 although its machine died."""
NO_INIT = 4
"""Exit code of ``restart`` where no init runs."""
