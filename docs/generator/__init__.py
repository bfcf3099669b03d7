"""Writes the reference pages and the tables of the benchmarks: ``python -m docs.generator``."""
