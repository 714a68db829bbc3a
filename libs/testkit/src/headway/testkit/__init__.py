"""Rigs for Headway's own tests and benchmarks, never released.

They are fuzzers, worker pools and model clusters.
"""
