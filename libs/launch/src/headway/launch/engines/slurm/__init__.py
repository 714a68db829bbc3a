"""Nodes that run as steps of a Slurm job."""
