"""What an environment shows, as arrays by name."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.errors import ConfigError

STATE_KEY = "state"
"""Name of the observation of an environment whose observation space is no Dict."""

FINAL = "final_"
"""Prefix of the column with an observation after an episode's last action."""

COLUMNS = frozenset(
    (
        *("uid", "group_id", "policy_version", "seed", "instruction_ids", "action_tokens", "actions", "log_probs"),
        *("loss_mask", "env_task_id", "goal", "num_steps", "episode_return", "success", "terminated", "truncated"),
        *("final_state", "bootstrap_values", "prompt_tokens", "prompt_length", "response_length", "prompt_id"),
        *("rewards", "kl_penalty", "advantages", "old_log_probs", "ref_log_probs", "values", "returns", "scores"),
        *("progress_distance", "trained", "token_weights", "decision_weights", "selected"),
    )
)
"""Names that rows (:mod:`embodyflow.types`) have a meaning for, some only where they are read or trained on: an
observation, which is a column beside them, must have another."""


def observation_fields(space: gym.Space[Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return observation key to (shape, dtype) for one environment.

    Raises:
        ConfigError: the space, or an entry of it, is no array of numbers; the message names it.
    """
    entries = space.spaces if isinstance(space, gym.spaces.Dict) else {STATE_KEY: space}
    fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for key, entry in entries.items():
        if entry.shape is None or entry.dtype is None:
            raise ConfigError(
                f"env: observation_space[{key!r}] must be an array of numbers, is {entry}; flatten it by a wrapper in "
                "env.adapter.wrappers"
            )
        fields[key] = (entry.shape, entry.dtype)
    return fields


def entries_of(observation: Any) -> Mapping[str, Any]:
    """Return the arrays of an observation by the names that :func:`observation_fields` gives them."""
    return observation if isinstance(observation, dict) else {STATE_KEY: observation}
