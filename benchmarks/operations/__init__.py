"""Campaigns of faults, health, retention and traces."""
