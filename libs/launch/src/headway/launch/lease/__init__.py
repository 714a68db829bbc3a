"""The lease, in a folder or at Kubernetes, of the process that may lead a run."""
