"""Evaluations, and the episodes that a run keeps of them."""
