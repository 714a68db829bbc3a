"""What provides machines: this one, hosts over ssh, Slurm, Kubernetes."""
