"""Which machines a run relies on: those with its code, and those that pass a check."""
