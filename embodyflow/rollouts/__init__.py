"""Rollout engines, in which a policy acts and produces rows."""
