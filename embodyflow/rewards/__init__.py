"""Rewards of responses and of failed episodes."""
