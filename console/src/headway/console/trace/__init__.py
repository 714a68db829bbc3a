"""A trace of all ranks, for ui.perfetto.dev."""
