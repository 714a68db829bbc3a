"""A rank's process: how it starts, what it reports, how it ends."""
