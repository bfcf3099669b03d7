"""Batch-invariant generation for conversations, whose keys and values stay in the cache between turns."""
