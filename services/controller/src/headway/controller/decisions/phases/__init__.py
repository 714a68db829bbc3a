"""The phases of a run, one class each, and the table of them."""
