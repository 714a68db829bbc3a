"""What a notebook shows of a run beside its curves."""
