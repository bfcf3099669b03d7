"""Prompts of language jobs: data sources, tokenization, validation scores."""
