"""Rollouts of agents: checks before the start, conversations, and their rows."""
