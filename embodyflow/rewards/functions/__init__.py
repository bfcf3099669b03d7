"""Reward functions: each judges one response."""
