"""Short timed trainings of one configuration after another, on this machine's ranks."""
