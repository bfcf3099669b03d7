"""An environment with goals that are reached before the policy acts."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class SomeSolved(gym.Env[np.ndarray, np.ndarray]):
    """A point on a line that succeeds within 0.1 of the origin.

    Its seed chooses the start: 0 for every third seed, 0.12 for the next, where only an action to the left succeeds,
    and 5 for the third. ``tells`` puts the success into the info of the reset too.
    """

    observation_space: gym.Space[Any] = Box(-np.inf, np.inf, (1,), np.float32)
    action_space: gym.Space[Any] = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, tells: bool = False) -> None:
        self.tells = tells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = (0.0, 0.12, 5.0)[(seed or 0) % 3] + (options or {}).get("shift", 0.0)
        return self.observe(), {"success": abs(self.x) < 0.1} if self.tells else {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.x += 0.05 * float(action[0])
        return self.observe(), 0.0, False, False, {"success": abs(self.x) < 0.1}

    def observe(self) -> np.ndarray:
        return np.array([self.x], np.float32)


gym.register("SomeSolved-v0", SomeSolved, disable_env_checker=True)
