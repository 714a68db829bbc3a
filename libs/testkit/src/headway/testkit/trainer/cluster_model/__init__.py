"""A model of a cluster for the driver's decisions: everything in it can fail, be late, lie or come back."""
