"""An environment that counts, in a module of its own because each process that steps it imports the module."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Counter(gym.Env):
    """Adds actions to ``count`` and ends after ``end`` steps; action 13 raises, 14 kills the process and 15 hangs."""

    action_space = Box(-100.0, 100.0, (2,), np.float32)
    observation_space = Dict({"count": Box(-np.inf, np.inf, (1,), np.float64), "parity": Discrete(2)})
    even_values: tuple = (True, False)

    def __init__(self, end=1000, truncate=False):
        self.end, self.truncate = end, truncate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.count = 0, float((options or {}).get("start", self.np_random.integers(1000)))
        return self.observe(), {}

    def step(self, action):
        if action[0] == 13:
            raise ValueError("unlucky")
        if action[0] == 14:
            os.kill(os.getpid(), signal.SIGKILL)
        if action[0] == 15:
            time.sleep(60)
        self.steps += 1
        self.count += float(action.sum())
        over = self.steps >= self.end
        info = {"success": self.count > 5, "even": self.even_values[self.steps % 2], "pid": os.getpid()}
        return self.observe(), float(action[0]), over and not self.truncate, over and self.truncate, info

    def observe(self):
        return {"count": np.array([self.count]), "parity": self.steps % 2}


def half_cheetah():
    return gym.make("HalfCheetah-v5", disable_env_checker=True, max_episode_steps=12)
