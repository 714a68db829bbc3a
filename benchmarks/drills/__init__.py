"""Fifteen drills, D1 to D15: each breaks one thing that is not a clean death,
and judges what is true after."""
