"""Which policy a configuration means."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.base import Critic, Policy
from embodyflow.policies.fit import check_fits
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.tiny_vla.critic_tiny_vla import TinyVLACritic
from embodyflow.policies.tiny_vla.policy_tiny_vla import TinyVLAPolicy


def build_policy(config: TinyVLAConfig, env: gym.Env[Any, Any], device: str) -> Policy:
    """Build the policy, randomly initialised, after :func:`check_fits`."""
    check_fits(config, env)
    return TinyVLAPolicy(config, device)


def build_critic(config: TinyVLAConfig, device: str) -> Critic:
    """Build the critic of the policy of these sizes."""
    return TinyVLACritic(config, device)
