"""Whether a policy can act in an environment: checked on spaces alone, before anything is built or started."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.errors import ConfigError
from embodyflow.policies.observations import STATE_KEY, observation_fields
from embodyflow.policies.openvla import checkpoint_openvla
from embodyflow.policies.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.pi0.configuration_pi0 import PI0Config
from embodyflow.policies.policy_config import ControlPolicyConfig, EmbodiedPolicyConfig
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.tiny_vla.configuration_tiny_vla import TinyVLAConfig


def check_fits(config: EmbodiedPolicyConfig | ControlPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Check that a policy of these sizes can act in the environment, and that its checkpoint is one of such a policy.

    Raises:
        ConfigError: it looks at what the environment does not show, or acts in another number of dimensions, or within
            other bounds.
    """
    fields = observation_fields(env.observation_space)
    shapes = {name: shape for name, (shape, _) in fields.items()}
    for name, wanted in config.observation_shapes.items():
        if not _is(shapes.get(name), wanted):
            raise ConfigError(_misfit(name, wanted, shapes))
        if len(wanted) == 3 and fields[name][1] != np.uint8:
            raise ConfigError(
                f"policy.cameras: the environment's {name!r} is {fields[name][1]}; "
                "allowed is uint8 [H, W, 3], from 0 to 255"
            )
    if _action_box(env).shape != (config.action_dim,):
        raise ConfigError(
            f"policy.action_dim={config.action_dim}: the environment's actions have {env.action_space.shape}"
        )
    if _acts_within_one(config):
        _check_bounds(config.name, _action_box(env))
    if isinstance(config, OpenVLAConfig):
        checkpoint_openvla.check_checkpoint(config)
    if isinstance(config, SmolVLAConfig | PI0Config) and config.path is not None:
        _check_lerobots(config)


def _acts_within_one(config: EmbodiedPolicyConfig | ControlPolicyConfig) -> bool:
    """Say whether the policy's actions are in [-1, 1] whatever the environment: bins that no statistics scale."""
    return isinstance(config, TinyVLAConfig) or (isinstance(config, OpenVLAConfig) and config.path is None)


def _check_bounds(name: str, space: gym.spaces.Box) -> None:
    if (space.low != -1).any() or (space.high != 1).any():
        raise ConfigError(
            f"policy.name={name}: acts in [-1, 1], the environment in [{space.low.min()}, {space.high.max()}]; "
            "scale it by env.adapter or Gymnasium's RescaleAction"
        )


def _check_lerobots(config: SmolVLAConfig | PI0Config) -> None:
    from embodyflow.policies.flow_vla.checkpoint_flow_vla import check_checkpoint  # seconds to import
    from embodyflow.policies.pi0 import checkpoint_pi0
    from embodyflow.policies.smolvla import checkpoint_smolvla

    check_checkpoint(checkpoint_pi0.LAYOUT if isinstance(config, PI0Config) else checkpoint_smolvla.LAYOUT, config)


def _is(shape: tuple[int, ...] | None, wanted: tuple[int | None, ...]) -> bool:
    """Say whether a shape is the wanted one, in which ``None`` is any number."""
    if shape is None or len(shape) != len(wanted):
        return False
    return all(want in (None, size) for size, want in zip(shape, wanted, strict=True))


def _misfit(name: str, wanted: tuple[int | None, ...], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return what is wrong with an observation, and what can be done."""
    shape, size = shapes.get(name), wanted[0]
    if name == "state":
        return f"policy.state_dim={size}: the environment's state has {shape}"
    key = "policy.cameras" if size is None else f"policy.image_size={size}"
    found = f"shows no {name!r}, but {', '.join(shapes)}" if shape is None else f"has its {name} in {shape}"
    return (
        f"{key}: the environment {found}; set +env.kwargs.image_size={size or '…'} and what else it takes to show "
        "images, or env.adapter.images and env.adapter.image_size"
    )


def policy_sizes(env: gym.Env[Any, Any]) -> dict[str, int]:
    """Return the sizes that a policy for the environment has, by the names of its configuration.

    Raises:
        ConfigError: its actions are no vector of numbers, or its observations no arrays.
    """
    shape, _ = observation_fields(env.observation_space).get(STATE_KEY, ((0,), None))
    return {"state_dim": shape[0] if shape else 1, "action_dim": _action_box(env).shape[0]}


def _action_box(env: gym.Env[Any, Any]) -> gym.spaces.Box:
    space = env.action_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"env: actions must be a Box of one dimension, are {space}; a wrapper can make them")
    if not np.issubdtype(space.dtype, np.floating):  # fractions would be cut off
        raise ConfigError(f"env: actions must be a Box of floats, are {space}; a wrapper can make them")
    return space
