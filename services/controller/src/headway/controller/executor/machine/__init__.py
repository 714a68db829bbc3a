"""What an executor finds out: checks of its machine, its processes, and the run's folder."""
