"""Driver and executor: what starts, watches and mends a run. Never imports torch."""
