"""Micro-batches, and the streams of samples of a replica."""
