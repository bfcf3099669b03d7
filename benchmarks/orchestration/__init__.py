"""Benchmarks of the control plane and the data plane."""
