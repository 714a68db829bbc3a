"""The choice of a device, and what it records of its work."""
