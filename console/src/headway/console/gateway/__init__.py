"""A console on a machine that does not see the folder of the runs, and the gateway it asks."""
