"""Benchmarks of agents."""
