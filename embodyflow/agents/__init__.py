"""Agents: episodes in which a language model talks with tools and environments, turn by turn."""
