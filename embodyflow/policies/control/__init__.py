"""Policies of control jobs, a folder each, and the small MLPs that they share."""
