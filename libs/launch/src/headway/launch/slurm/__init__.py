"""Nodes as steps of a Slurm job."""
