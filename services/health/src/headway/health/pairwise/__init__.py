"""Measures nodes in pairs, twice, to find the bad one among them."""
