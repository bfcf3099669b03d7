"""Prompts from files of rows."""
