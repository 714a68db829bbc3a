"""Flat buffers, initial weights, and snapshots of them."""
