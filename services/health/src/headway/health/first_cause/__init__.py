"""Puts the first cause before what follows from it: one verdict per fault, whatever comes first."""
