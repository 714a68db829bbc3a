"""Machines that are lost for good, and those that the engine brings in their place."""
