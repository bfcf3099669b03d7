"""The actions that an environment executes for those of a policy."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete


def executable_actions(space: gym.Space[Any], actions: np.ndarray) -> np.ndarray:
    """Return the actions that environments execute for the actions of a policy.

    Args:
        space: Action space of one environment: Discrete, or a Box, MultiDiscrete or MultiBinary of shape ``[A]``.
        actions: Actions of the policy, float32 ``[n, C, A]``: samples that may lie out of bounds, or the indices of
            discrete actions, with A = 1 for Discrete.

    Returns:
        With a Box the actions within its bounds, ``[n, C, A]``; else :func:`numbered_actions`.
    """
    return actions.clip(space.low, space.high) if isinstance(space, Box) else numbered_actions(space, actions)


def stretched_actions(space: Box, actions: np.ndarray) -> np.ndarray:
    """Return actions in [-1, 1], float32 ``[..., A]``, stretched to the bounds of a Box."""
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return np.clip(low + (actions + 1) / 2 * (high - low), low, high)


def numbered_actions(space: gym.Space[Any], actions: np.ndarray) -> np.ndarray:
    """Return a policy's indices of discrete actions as the numbers of the space, which begin at ``space.start``.

    Args:
        space: Action space of one environment, see :func:`executable_actions`.
        actions: Indices from 0, float32 ``[..., A]``.

    Returns:
        Numbers in the dtype of the space, ``[...]`` with Discrete, else ``[..., A]``. Actions of a Box are returned as
        they are.
    """
    if isinstance(space, Discrete):
        return space.start + actions[..., 0].astype(space.dtype)
    if isinstance(space, MultiDiscrete):
        return space.start + actions.astype(space.dtype)
    return actions.astype(space.dtype) if isinstance(space, MultiBinary) else actions


def recorded_actions(space: gym.Space[Any], actions: np.ndarray) -> np.ndarray:
    """Return a policy's actions, float32 ``[..., A]``, within the bounds of a Box; indices are returned as they are."""
    if not isinstance(space, Box):
        return actions
    return np.clip(actions, space.low.astype(np.float32), space.high.astype(np.float32))


def null_action(space: gym.Space[Any]) -> np.ndarray:
    """Return the action that moves least, float32 ``[A]``.

    It is the middle of a Box, in dimensions without both bounds the number nearest to 0. Among discrete actions it is
    the first one, as nothing is known of them.
    """
    if not isinstance(space, Box):
        return np.zeros(space.shape or (1,), np.float32)
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    with np.errstate(invalid="ignore"):  # the sum of two infinities is not used
        return np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0, low, high))
