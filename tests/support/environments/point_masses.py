"""A point that slides on a line: one in ``PointMass``, many in one array operation in ``PointMasses``.

Both give the same bits. An episode ends early beyond 1.5; its reward is highest at 0.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = np.ndarray[Any, Any]
OBSERVED = Box(-np.inf, np.inf, (2,), np.float32)
MOVED = Box(-1.0, 1.0, (1,), np.float32)


def observe(x: Any, v: Any) -> Array:
    return np.stack([x, v], axis=-1).astype(np.float32)


def move(x: Any, v: Any, force: Any) -> tuple[Any, Any, Any, Any]:
    """Return place, speed, reward and whether the point left the line."""
    v = 0.5 * v + 0.2 * np.asarray(force, np.float64)
    x = x + v
    return x, v, 1 - np.abs(x), np.abs(x) > 1.5


class PointMass(gym.Env[Array, Array]):
    """One point."""

    observation_space, action_space = OBSERVED, MOVED

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.v = np.float64(self.np_random.uniform(-1, 1)), np.float64(0)
        return observe(self.x, self.v), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.x, self.v, reward, terminated = move(self.x, self.v, action[0])
        return observe(self.x, self.v), float(reward), bool(terminated), False, {}


class PointMasses(VectorEnv[Array, Array, Array]):
    """Many points, stepped together, in any autoreset mode.

    Args:
        num_envs: Number of points.
        max_episode_steps: Steps after which an episode is truncated.
        autoreset: Name of the autoreset mode.
        plan: Path of a file without which there is a fault once, in the step ``at``; it then creates the file.
        at: Step since the start of the process.
        fault: ``kill``, ``hang`` or ``nan``.
    """

    def __init__(
        self,
        num_envs: int,
        max_episode_steps: int,
        autoreset: str = "Disabled",
        plan: str = "",
        at: int = 0,
        fault: str = "kill",
    ) -> None:
        self.num_envs, self._limit, self._mode = num_envs, max_episode_steps, AutoresetMode(autoreset)
        self.metadata = {"autoreset_mode": self._mode}
        self.single_observation_space, self.single_action_space = OBSERVED, MOVED
        self.observation_space, self.action_space = batch_space(OBSERVED, num_envs), batch_space(MOVED, num_envs)
        self.x, self.v, self._t = np.zeros(num_envs), np.zeros(num_envs), np.zeros(num_envs, int)
        self._over = np.zeros(num_envs, bool)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._plan, self._at, self._fault, self._steps = plan, at, fault, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        lanes = (options or {}).get("reset_mask", np.ones(self.num_envs, bool)).nonzero()[0]
        seeds = [None] * self.num_envs if seed is None else seed
        seeds = [seeds + lane for lane in range(self.num_envs)] if isinstance(seeds, int) else seeds
        for lane in lanes:
            if seeds[lane] is not None:
                self._generators[lane], _ = gym.utils.seeding.np_random(seeds[lane])
        self._begin(lanes)
        return observe(self.x, self.v), {}

    def _begin(self, lanes: Array) -> None:
        self.x[lanes] = [self._generators[lane].uniform(-1, 1) for lane in lanes]
        self.v[lanes], self._t[lanes], self._over[lanes] = 0, 0, False

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        broken = self._fails_as_planned()
        resets = self._over.copy()
        assert self._mode is not AutoresetMode.DISABLED or not resets.any(), "a lane must be reset first"
        x, v, reward, terminated = move(self.x, self.v, actions[:, 0])
        self.x, self.v, self._t = np.where(resets, self.x, x), np.where(resets, self.v, v), self._t + 1
        infos: dict[str, Any] = {}
        if self._mode is AutoresetMode.NEXT_STEP:
            self._begin(resets.nonzero()[0])
            reward, terminated = np.where(resets, 0, reward), terminated & ~resets
        truncated = (self._t >= self._limit) & ~resets
        over = terminated | truncated
        if self._mode is AutoresetMode.SAME_STEP and over.any():
            infos = {"final_obs": observe(self.x, self.v), "_final_obs": over}
            self._begin(over.nonzero()[0])
        else:
            self._over = over
        return observe(self.x, self.v) * (np.nan if broken else 1), reward, terminated, truncated, infos

    def _fails_as_planned(self) -> bool:
        """Return True if this step has the planned fault; do not return if the process dies or hangs."""
        self._steps += 1
        if not self._plan or self._steps != self._at or Path(self._plan).exists():
            return False
        Path(self._plan).touch()
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            time.sleep(3600)
        return True


gym.register(
    "tests/Points-v0",
    "point_masses:PointMass",
    vector_entry_point="point_masses:PointMasses",
    max_episode_steps=20,
    disable_env_checker=True,
)
gym.register("tests/PointsOnly-v0", vector_entry_point="point_masses:PointMasses", max_episode_steps=20)
gym.register(
    "tests/LongPoints-v0", vector_entry_point="point_masses:PointMasses", kwargs={"max_episode_steps": 9}
)  # its time limit is an argument that the caller does not know
