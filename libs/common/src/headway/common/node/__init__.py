"""Shared memory and processes of one machine."""
