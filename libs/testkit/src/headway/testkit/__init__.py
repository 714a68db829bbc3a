"""Rigs for Headway's own tests and benchmarks: fuzzers, worker pools, model
clusters. Never released."""
