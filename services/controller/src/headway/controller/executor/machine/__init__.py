"""What an executor finds out about its machine: checks, and processes that the kernel killed."""
