"""Check of TinyVLA against its environment."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.env_match import check_unit_bounds


def check(config: TinyVLAConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse continuous actions that are not bounded by -1 and 1, as the policy's bins are.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.num_choices is None:
        check_unit_bounds(config, env)
