"""Reward functions, each of which scores one response, and the sandbox for programs."""
