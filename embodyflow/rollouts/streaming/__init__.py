"""Engines that play single groups side by side."""
