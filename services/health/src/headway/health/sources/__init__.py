"""What a node shows of itself: one source per file, each readable with a fake root."""
