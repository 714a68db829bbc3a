"""A model of a cluster for the driver's decisions, in which everything can fail or be late."""
