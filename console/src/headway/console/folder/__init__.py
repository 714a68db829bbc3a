"""A run as its folder shows it; nothing is sent."""
