"""Check of SmolVLA against its checkpoint."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.pretrained.weights_match import check_weights_match


def check(config: SmolVLAConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse a checkpoint of another kind or of other sizes.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        return
    from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import check_checkpoint  # imports torch
    from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import LAYOUT

    check_checkpoint(LAYOUT, config)
    check_weights_match(config)
