"""Walks on a line with numbered actions, one space each."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete


class Walk(gym.Env[np.ndarray, Any]):
    """A walk from a random place to 3: actions -1, 0 and 1 move by as much."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 Gymnasium's own
    observation_space: gym.Space[Any] = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: gym.Space[Any] = Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.last = int(self.np_random.integers(-3, 2)), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.last = self.move(action)
        self.x += self.last
        return self.observe(), 0.5 * self.last, self.x >= 3, False, {}

    def move(self, action: Any) -> int:
        return int(action)

    def observe(self) -> np.ndarray:
        return np.array([self.x, self.last], np.float32)


class TwoSwitches(Walk):
    """A walk by a direction from -1 to 1 and a length from 0 to 3."""

    action_space = MultiDiscrete([3, 4], start=[-1, 0])

    def move(self, action: Any) -> int:
        return int(action[0] * action[1])


class Buttons(Walk):
    """A walk to the right by the number of buttons that are pressed."""

    action_space = MultiBinary(3)

    def move(self, action: Any) -> int:
        return int(action.sum())


class Grid(Walk):
    """A walk whose actions have two axes, which no policy here has."""

    action_space = MultiDiscrete([[2, 2], [2, 2]])

    def move(self, action: Any) -> int:
        return int(action.sum())


for kind in (Walk, TwoSwitches, Buttons, Grid):
    gym.register(f"{kind.__name__}-v0", kind, disable_env_checker=True)
