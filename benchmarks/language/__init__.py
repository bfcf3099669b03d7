"""Benchmarks of language models: generation, training, streaming."""
