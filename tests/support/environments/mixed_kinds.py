"""Small environments of different kinds, for runs with several: how many numbers they show and take differs."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

Array = np.ndarray[Any, Any]


class Point(gym.Env[Any, Array]):
    """A point in ``dims`` dimensions that must come near the origin; it moves by a tenth of the action.

    Args:
        dims: Number of dimensions.
        bound: Largest action in each direction.
        near: Distance that counts as success, in each direction.
        kind: ``box``; ``images`` shows a camera too, ``discrete`` takes numbers, ``unbounded`` any action.
    """

    def __init__(self, dims: int = 1, bound: float = 1.0, near: float = 0.15, kind: str = "box") -> None:
        self._dims, self._bound, self._near, self._kind = dims, bound, near, kind
        self.action_space: gym.Space[Any] = Box(-bound, bound, (dims,), np.float32)
        if kind == "discrete":
            self.action_space = Discrete(2)
        if kind == "unbounded":
            self.action_space = Box(-np.inf, np.inf, (dims,), np.float32)
        state = Box(-np.inf, np.inf, (dims,), np.float32)
        image = Box(0, 255, (16, 16, 3), np.uint8)
        self.observation_space = Dict({"state": state, "image": image}) if kind == "images" else state

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(0.4, 0.8, self._dims) * self.np_random.choice([-1, 1], self._dims)
        return self.observe(), {}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = self.at + 0.1 * np.asarray(action, np.float64) / self._bound
        distance = float(np.abs(self.at).max())
        return self.observe(), -distance, False, False, {"success": distance < self._near}

    def observe(self) -> Any:
        state = self.at.astype(np.float32)
        return {"state": state, "image": np.zeros((16, 16, 3), np.uint8)} if self._kind == "images" else state


def towards_origin(env: gym.Env[Any, Any], observation: Array) -> Array:
    """Return the action that moves a point towards the origin, within its bounds."""
    bound = env.action_space.high[0]  # type: ignore[attr-defined]
    return np.clip(-10 * bound * observation, -bound, bound)


gym.register("Point-v0", Point, disable_env_checker=True)
