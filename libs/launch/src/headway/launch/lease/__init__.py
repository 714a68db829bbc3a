"""Who may lead a run: a lease in a folder or at Kubernetes."""
