"""Processes that clean up after a process that was killed."""
