"""Nodes on existing machines, which are reached by a command, ssh by default."""
