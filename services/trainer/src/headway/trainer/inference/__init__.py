"""Text from stored weights in one process, without a run."""
