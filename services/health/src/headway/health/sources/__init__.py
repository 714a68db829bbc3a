"""The sources of an agent's beats, one per file."""
