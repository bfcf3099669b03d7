"""A small environment that soft actor-critic learns in a few hundred updates."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Matching(gym.Env[Any, Any]):
    """Shows a number in [-1, 1] and rewards the action, in [-2, 2], by its distance from twice that number."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown, self._steps = self.np_random.uniform(-1, 1, 1).astype(np.float32), 0
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -abs(float(action[0]) - 2 * float(self._shown[0]))
        self._steps += 1
        self._shown = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._shown, reward, self._steps == 7, False, {}


gym.register("Matching-v0", Matching)
