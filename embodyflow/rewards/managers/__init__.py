"""Reward managers: each runs a reward function, or a reward model, on many samples."""
