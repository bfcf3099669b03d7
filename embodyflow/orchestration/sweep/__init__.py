"""Sweeps: one run for each combination of values of configuration keys, and a leaderboard of the runs."""
