"""Workflow classes of AReaL, unchanged."""
