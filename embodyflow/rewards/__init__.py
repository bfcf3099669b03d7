"""Rewards: what an episode or a response is worth."""
