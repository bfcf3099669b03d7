"""Retries of the start of Ray, which gives a node 30 s however busy the machine is, and has no setting for that."""

NUM_RAY_STARTS = 3
"""Attempts to start Ray."""

RAY_TOO_SLOW = "timed out during startup"
"""Text of Ray's error when its 30 s are over."""
