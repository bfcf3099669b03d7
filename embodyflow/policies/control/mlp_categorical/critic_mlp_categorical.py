"""Critic of the categorical policy, as :class:`~embodyflow.policies.base.Critic`."""

from embodyflow.policies.control.mlp.critic_mlp import MLPCritic


class MLPCategoricalCritic(MLPCritic):
    """Values states with a network of its own, of the policy's sizes."""
