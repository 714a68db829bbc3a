"""The driver: one process per run, with its sockets, its lease and its connections."""
