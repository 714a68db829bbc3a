"""What engines for several machines have in common."""
