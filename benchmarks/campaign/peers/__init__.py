"""Recorders' dumps with known truth, given to Headway and to other tools."""
