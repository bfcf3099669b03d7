"""Actions that an environment of a control job executes."""

from typing import Any

import gymnasium as gym
import numpy as np


def executable_actions(space: gym.Space[Any], actions: np.ndarray) -> np.ndarray:
    """Return the actions that environments execute for the actions of a policy.

    Args:
        space: Action space of one environment, a Box of shape ``[A]`` or Discrete.
        actions: Actions of the policy, float32 ``[n, C, A]``: samples that may lie out of bounds, or with A = 1 the
            indices of actions.

    Returns:
        With a Box the actions within its bounds, ``[n, C, A]``. With Discrete the numbers of the actions, ``[n, C]`` in
        the space's dtype, the first of which is ``space.start``.
    """
    if isinstance(space, gym.spaces.Discrete):
        return space.start + actions[..., 0].astype(space.dtype)
    assert isinstance(space, gym.spaces.Box)
    return np.clip(actions, space.low, space.high)
