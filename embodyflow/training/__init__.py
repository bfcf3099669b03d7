"""Trainer engines: rows come in, weights change."""
