"""Tensor and data parallelism."""
