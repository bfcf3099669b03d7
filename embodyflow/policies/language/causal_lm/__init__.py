"""Causal language models of transformers, and their critics."""
