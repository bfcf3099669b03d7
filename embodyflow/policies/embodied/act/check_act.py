"""Check of ACT against its checkpoint."""

from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.pretrained.weights_match import check_weights_match


def check(config: ACTConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse a checkpoint of another kind or of other sizes.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    del env
    if config.path is None:
        return
    from embodyflow.policies.embodied.act.checkpoint_act import check_checkpoint  # imports torch

    check_checkpoint(config)
    check_weights_match(config)
