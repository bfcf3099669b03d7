"""Reward managers, each of which runs a reward function or a reward model on many samples."""
