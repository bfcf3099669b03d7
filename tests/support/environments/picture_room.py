"""An environment with images that needs no GL: NumPy draws a dot, which the policy moves to the middle."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

SIZE = 16
WORDS = (
    *(
        "experiment=embodied",
        "env.id=picture_room:Room-v0",
        "env.tasks=[move the dot to the middle]",
        "env.max_steps=16",
    ),
    *("env.adapter.success_info=is_success", "+env.adapter.images.image=camera", "env.adapter.state=[dot]"),
    *("env.adapter.expert=picture_room:straight", "policy=tiny_openvla"),
)
"""Overrides for a run of a small OpenVLA-OFT in this environment."""


class Room(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A room whose middle is two fifths wide; a step crosses at most an eighth, so random policies can succeed."""

    def __init__(self) -> None:
        self.observation_space = Dict(
            dot=Box(-1.0, 1.0, (2,), np.float32), camera=Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        )
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._dot = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._dot = np.clip(self._dot + 0.25 * action, -1, 1).astype(np.float32)
        success = bool(np.abs(self._dot).max() < 0.4)
        return self._observe(), 0.0, False, False, {"is_success": success}

    def _observe(self) -> dict[str, np.ndarray]:
        grid = np.linspace(-1, 1, SIZE)
        away = (grid[:, None] - self._dot[1]) ** 2 + (grid - self._dot[0]) ** 2
        picture = np.repeat((255 * np.exp(-8 * away)).astype(np.uint8)[..., None], 3, axis=-1)
        return {"dot": self._dot.copy(), "camera": picture}


def straight(env: gym.Env[Any, Any], observation: dict[str, np.ndarray]) -> np.ndarray:
    """Return the action that moves straight to the middle."""
    return np.clip(-4.0 * observation["dot"], -1, 1).astype(np.float32)


gym.register("Room-v0", Room)
