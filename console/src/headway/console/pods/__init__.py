"""Runs on Kubernetes, as a machine outside of the cluster starts, watches and ends them."""
