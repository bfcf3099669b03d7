"""Requests for runs: parsed, checked and refused before anything starts."""
