"""What ``headway inject`` breaks, and how it is undone."""
