"""Readers of what other programs left behind."""
