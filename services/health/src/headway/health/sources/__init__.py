"""What an agent reports is read here, one source per file."""
