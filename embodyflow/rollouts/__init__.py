"""Rollout engines: a policy acts, rows come out."""
