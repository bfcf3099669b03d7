"""Prompts of language jobs: sources, tokenization and validation scores."""
