"""What checks and peers measure with: memory nodes, GPUs, TCP streams, and who is to blame."""
