"""A run as polars frames: metrics, flight records, recoveries.

Pure functions, with loaders next to them.
"""
