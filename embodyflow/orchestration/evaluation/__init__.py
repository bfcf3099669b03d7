"""Evaluations, and the records and pictures of a run's episodes."""
