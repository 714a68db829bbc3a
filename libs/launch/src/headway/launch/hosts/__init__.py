"""Nodes on machines that exist already and are reached by a command, ssh by default."""
