"""Check of π0.5 against its checkpoint."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.pi05.configuration_pi05 import PI05Config
from embodyflow.policies.pretrained.weights_match import check_weights_match


def check(config: PI05Config, env: gym.Env[Any, Any]) -> None:
    """Refuse a checkpoint of another kind or of other sizes.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        return
    from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import check_checkpoint  # imports torch
    from embodyflow.policies.embodied.pi05.checkpoint_pi05 import LAYOUT

    check_checkpoint(LAYOUT, config)
    check_weights_match(config)
