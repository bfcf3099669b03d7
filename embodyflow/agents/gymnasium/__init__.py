"""Gymnasium environments whose observations and actions are text."""
