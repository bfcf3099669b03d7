"""Rollouts of robots: episodes, their rows, their pictures, and labels of experts."""
