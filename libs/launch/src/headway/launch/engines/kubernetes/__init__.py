"""Nodes as pods of a Kubernetes Job, which are rendered here and started by Kubernetes."""
