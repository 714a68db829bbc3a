"""Pure functions from signals to verdicts."""
