"""Observations of an environment, as arrays by name."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.errors import ConfigError

STATE_KEY = "state"
"""Name of the only observation of an environment whose observation space is not a Dict."""


MEMBER_KEY = "member"
"""Name of the observation that holds the index of the environment's kind among ``env.members``, int64 ``[1]``."""


def observation_fields(space: gym.Space[Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return (shape, dtype) of each observation, by name.

    Raises:
        ConfigError: The space, or an entry of it, is not an array of numbers; the message names it.
    """
    entries = space.spaces if isinstance(space, gym.spaces.Dict) else {STATE_KEY: space}
    fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for key, entry in entries.items():
        if entry.shape is None or entry.dtype is None:
            arrays = [name for name, each in entries.items() if each.shape is not None]
            choose = f"choose others by env.adapter.state=[{','.join(arrays)}], or " if arrays else ""
            raise ConfigError(
                f"env: observation_space[{key!r}] must be an array of numbers, not {entry}; {choose}flatten it by a "
                "wrapper in env.adapter.wrappers"
            )
        fields[key] = (entry.shape, entry.dtype)
    return fields


def entries_of(observation: Any) -> Mapping[str, Any]:
    """Return the arrays of an observation by the names that :func:`observation_fields` gives them."""
    return observation if isinstance(observation, dict) else {STATE_KEY: observation}


def fitted(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an observation, or those of several lanes, as an array that a cast to ``dtype`` does not change.

    Another precision of floats is allowed; so are integers of another width, as long as ``dtype`` can hold them.

    Args:
        name: Name of the observation for errors.
        value: Observation.
        shape: Shape that it must have.
        dtype: Dtype of its space.

    Raises:
        ValueError: It has another shape or kind of numbers, or an integer that wraps in ``dtype``. NumPy would repeat,
            cut off or wrap the numbers silently. The message has no subject.
    """
    found = np.asarray(value)
    if found.shape == shape and found.dtype == dtype:
        return found
    if found.shape != shape or not np.can_cast(found.dtype, dtype, "same_kind"):
        raise ValueError(
            f"its observation {name!r} must be {dtype} {shape} as in its observation_space, is {found.dtype} "
            f"{found.shape}"
        )
    if dtype.kind in "iu" and (wrong := found.astype(dtype) != found).any():
        raise ValueError(
            f"its observation {name!r} has {found[wrong][0]}, which the {dtype} of its observation_space cannot hold"
        )
    return found
