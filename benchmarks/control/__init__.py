"""Benchmarks of control jobs beside Stable-Baselines3."""
