"""Driver and executor: what starts, watches and repairs a run. Never imports torch."""
