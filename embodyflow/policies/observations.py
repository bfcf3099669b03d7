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
