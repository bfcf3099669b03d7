"""Layouts of a run on a cluster, and the memory that they need."""
