"""Checks of the policy of images and chunks against its environment."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.cnn_chunks.configuration_cnn_chunks import CNNChunksConfig
from embodyflow.policies.env_match import check_unit_bounds


def check(config: CNNChunksConfig, env: gym.Env[Any, Any] | None) -> None:
    """Refuse environments whose actions are not bounded by -1 and 1.

    Raises:
        ConfigError: They are not.
    """
    if env is not None:
        check_unit_bounds(config, env)
