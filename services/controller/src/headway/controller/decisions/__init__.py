"""What the driver decides, pure: (state, event, now) -> actions."""
