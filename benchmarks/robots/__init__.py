"""Benchmarks of robots: environments, learning, replay of demonstrations."""
