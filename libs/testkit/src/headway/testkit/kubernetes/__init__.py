"""A real API server of Kubernetes on loopback, and what is played around it."""
