"""From signals to verdicts, pure."""
