"""Policies of embodied jobs, a folder each, and the parts that they share."""
