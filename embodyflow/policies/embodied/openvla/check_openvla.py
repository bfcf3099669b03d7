"""Check of OpenVLA against its checkpoint or its environment."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.openvla.checkpoint_openvla import check_checkpoint
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.env_match import check_unit_bounds
from embodyflow.policies.pretrained.weights_match import check_weights_match


def check(config: OpenVLAConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse a checkpoint of another kind or of other sizes.

    A model of random weights has no statistics to scale its actions: it needs an environment bounded by -1 and 1.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        check_unit_bounds(config, env)
    else:
        check_checkpoint(config)
        check_weights_match(config)
