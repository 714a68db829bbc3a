"""Drills: faults struck on runs by seeded plans or by scripts, and judges of what is true after."""
