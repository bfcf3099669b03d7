"""Whether a policy matches an environment, checked on spaces before anything is built or started."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.errors import ConfigError
from embodyflow.policies.observations import STATE_KEY, observation_fields
from embodyflow.policies.policy_config import (
    ActingPolicyConfig,
    ControlPolicyConfig,
    DiscreteControlPolicyConfig,
    EmbodiedPolicyConfig,
    Shape,
)
from embodyflow.policies.policy_registry import find_policy

FLATTEN = "env.adapter.wrappers=[gymnasium.wrappers:FlattenObservation]"


def check_match(config: ActingPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Check that a policy can act in an environment, by their shapes and by the policy's own check.

    Raises:
        ConfigError: The environment does not show what the policy reads, has actions of another size, or the policy's
            own check refuses it; one line that names the key and what is allowed.
    """
    fields = observation_fields(env.observation_space)
    shapes = {name: shape for name, (shape, _) in fields.items()}
    for name, wanted in config.observation_shapes.items():
        if not _has_shape(shapes.get(name), wanted):
            raise ConfigError(_mismatch(config.name, name, wanted, shapes))
        if len(wanted) == 3 and fields[name][1] != np.uint8:
            raise ConfigError(
                f"policy.cameras: the environment's {name!r} is {fields[name][1]}; "
                "allowed is uint8 [H, W, 3], from 0 to 255"
            )
    _check_actions(config, env)
    if config.off_policy is not None and isinstance(config, ControlPolicyConfig):
        _check_width(config, env)
    find_policy(config.name).run_check(config, env)


def check_unit_bounds(config: ActingPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Check that an environment's actions are bounded by -1 and 1.

    Raises:
        ConfigError: They are not; one line that names the policy and how to scale them.
    """
    space = _action_box(env)
    if (space.low != -1).any() or (space.high != 1).any():
        raise ConfigError(
            f"policy.name={config.name}: acts in [-1, 1], the environment in [{space.low.min()}, {space.high.max()}]; "
            "scale actions by env.adapter or Gymnasium's RescaleAction"
        )


def has_finite_width(space: gym.spaces.Box) -> bool:
    """Return True if actions in [-1, 1] can be scaled to the bounds.

    The largest numbers of a dtype stand for bounds that nobody knows, as infinity does.
    """
    with np.errstate(over="ignore"):  # the distance of the largest numbers is infinite
        width = space.high.astype(np.float64) - space.low.astype(np.float64)
    return bool((width < np.finfo(np.float32).max / 2).all())


def one_line(space: gym.Space[Any]) -> str:
    """Return a space as text in one line; a MultiDiscrete prints its arrays in several."""
    return " ".join(str(space).split())


def num_choices(space: gym.Space[Any]) -> tuple[int, ...] | None:
    """Return the number of choices in each dimension of a discrete action, ``A`` of them.

    Returns:
        ``(n,)`` for ``Discrete(n)``; the numbers of a ``MultiDiscrete`` and twos for a ``MultiBinary``, if they have
        one axis; ``None`` for any other space.
    """
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, gym.spaces.MultiDiscrete) and len(space.shape) == 1:
        return tuple(space.nvec.tolist())
    if isinstance(space, gym.spaces.MultiBinary) and len(space.shape) == 1:
        return (2,) * space.shape[0]
    return None


def policy_sizes(env: gym.Env[Any, Any]) -> dict[str, int | list[int]]:
    """Return the sizes of a policy for the environment, by the keys of its configuration.

    Raises:
        ConfigError: An action is neither a vector of floats nor discrete, or an observation no array.
    """
    fields, sizes = observation_fields(env.observation_space), _action_sizes(env)
    if STATE_KEY in fields:
        shape, _ = fields[STATE_KEY]
        return {"state_dim": shape[0] if shape else 1, **sizes}
    # A policy may read images alone. Without either, check_match names what the environment observes.
    return {"state_dim": 0, **sizes} if any(len(shape) == 3 for shape, _ in fields.values()) else sizes


def _action_sizes(env: gym.Env[Any, Any]) -> dict[str, int | list[int]]:
    choices = num_choices(env.action_space)
    if choices is None:
        return {"action_dim": _action_box(env).shape[0]}
    sizes: dict[str, int | list[int]] = {"action_dim": len(choices), "num_choices": list(choices)}
    return sizes | ({"num_actions": choices[0]} if isinstance(env.action_space, gym.spaces.Discrete) else {})


def _check_actions(config: ActingPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse an environment whose actions are of another kind or size than the policy's."""
    space = env.action_space
    if isinstance(config, DiscreteControlPolicyConfig):
        if not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(
                f"policy.name={config.name}: chooses among numbered actions, the environment's are {one_line(space)}; "
                "allowed is policy=mlp_gaussian or another policy for continuous actions"
            )
        if space.n != config.num_actions:
            raise ConfigError(f"policy.num_actions={config.num_actions}: the environment has {space.n} actions")
    elif num_choices(space) is not None and isinstance(config, ControlPolicyConfig):
        if not isinstance(space, gym.spaces.Discrete):
            raise ConfigError(
                f"env: actions of a control job must be a Box or Discrete, not {one_line(space)}; a wrapper can do it"
            )
        raise ConfigError(
            f"policy.name={config.name}: has continuous actions, the environment's are {one_line(space)}; "
            "allowed is policy=mlp_categorical"
            + (", or policy.action_dim=null, which chooses it" if config.discrete_policy else "")
        )
    elif isinstance(config, EmbodiedPolicyConfig) and (config.choices, num_choices(space)) != (None, None):
        _check_choices(config, space)
    elif _action_box(env).shape != (config.action_dim,):
        raise ConfigError(f"policy.action_dim={config.action_dim}: the environment's actions have {space.shape}")


def _check_choices(config: EmbodiedPolicyConfig, space: gym.Space[Any]) -> None:
    """Refuse discrete actions of a policy or an environment that the other one does not have."""
    found = num_choices(space)
    if config.choices == found:
        return
    if found is None:
        raise ConfigError(
            f"policy.num_choices={list(config.choices or ())}: chooses among numbered actions, the environment's are "
            f"{one_line(space)}; allowed is null"
        )
    if config.choices is not None:
        raise ConfigError(f"policy.num_choices={list(config.choices)}: the environment has {list(found)}")
    if "num_choices" not in type(config).model_fields:
        raise ConfigError(
            f"policy.name={config.name}: has continuous actions, the environment's are {one_line(space)}; "
            "allowed is policy=tiny_vla"
        )
    raise ConfigError(
        f"policy.num_choices=null: means continuous actions, the environment's are {one_line(space)}; "
        f"allowed is {list(found)}, or policy.action_dim=null, which sets it"
    )


def _check_width(config: ControlPolicyConfig, env: gym.Env[Any, Any]) -> None:
    """Refuse an environment to whose bounds the actions of an off-policy policy cannot be stretched."""
    space = _action_box(env)
    if not has_finite_width(space):
        raise ConfigError(
            f"policy.name={config.name}: acts in [-1, 1], stretched to the environment's bounds, which are "
            f"[{space.low.min():g}, {space.high.max():g}]; allowed are finite ones, which a wrapper can set"
        )


def _has_shape(shape: tuple[int, ...] | None, wanted: Shape) -> bool:
    if shape is None or len(shape) != len(wanted):
        return False
    return all(want in (None, size) for size, want in zip(shape, wanted, strict=True))


def _mismatch(policy: str, name: str, wanted: Shape, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the message about an observation that is missing or has another shape."""
    shape, size = shapes.get(name), wanted[0]
    vectors = [key for key, each in shapes.items() if len(each) < 3]  # the others are images
    if name == STATE_KEY and shape is None and vectors:
        return (
            f"policy.state_dim: the environment has no {STATE_KEY!r}, it observes {', '.join(shapes)}; choose some by "
            f"env.adapter.state=[{','.join(vectors[:2])}], or flatten all of them by {FLATTEN}"
        )
    if name == STATE_KEY:
        flat = "" if len(shape or ()) < 2 else f"; flatten it by {FLATTEN}"
        return f"policy.state_dim={size}: the environment's state has {shape}{flat}"
    found = f"has no {name!r}, only {', '.join(shapes)}" if shape is None else f"has {name!r} in {shape}"
    if len(wanted) != 3:
        return f"policy.name={policy}: reads {name!r} in {wanted}, the environment {found}"
    key = "policy.cameras" if size is None else f"policy.image_size={size}"
    return (
        f"{key}: the environment {found}; set +env.kwargs.image_size={size or '…'} and what else it takes to show "
        "images, or env.adapter.images and env.adapter.image_size"
    )


def _action_box(env: gym.Env[Any, Any]) -> gym.spaces.Box:
    space = env.action_space
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ConfigError(
            f"env: actions must be a one-dimensional Box, not {one_line(space)}; a wrapper can convert them"
        )
    if not np.issubdtype(space.dtype, np.floating):  # a policy's fractions would be cut off
        raise ConfigError(f"env: actions must be a Box of floats, not {one_line(space)}; a wrapper can convert them")
    return space
