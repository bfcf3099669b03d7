"""Check of a steered policy against the checkpoint of the frozen one."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.steered.configuration_steered import SteeredConfig
from embodyflow.policies.policy_registry import find_policy


def check(config: SteeredConfig, env: gym.Env[Any, Any] | None) -> None:
    """Refuse what the frozen policy refuses.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    find_policy(config.steers).run_check(config, env)
