"""What tests and benchmarks of the trainer share.

It is a pool of worker processes and the jobs that it runs.
"""
