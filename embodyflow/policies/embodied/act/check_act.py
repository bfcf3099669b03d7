"""Check of ACT against its checkpoint."""

from pathlib import Path
from typing import Any

import gymnasium as gym

from embodyflow.policies.embodied.act.configuration_act import ACTConfig


def check(config: ACTConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse a checkpoint of another kind or of other sizes.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    del env
    if config.path is None:
        return
    from embodyflow.policies.embodied.act.checkpoint_act import check_checkpoint  # imports torch
    from embodyflow.policies.embodied.act.modeling_act import check_parameters

    check_checkpoint(config)
    if (folder := Path(config.path)).is_dir():
        check_parameters(config, folder)
