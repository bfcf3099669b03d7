"""Rewards from what episodes look like: progress towards successes (SRPO), and a classifier of success."""
