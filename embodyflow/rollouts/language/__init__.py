"""Rollouts of language models: responses to prompts, and the checks of such jobs before a process starts."""
