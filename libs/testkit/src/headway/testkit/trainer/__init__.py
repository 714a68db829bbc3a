"""What tests and benchmarks of the trainer share: a pool of worker processes and
the jobs that it runs."""
