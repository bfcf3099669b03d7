"""Meta-World whose steps take very different times: a stand-in of ``benchmarks/robots/slow_environments.py``."""

import math
import time
from typing import Any

import gymnasium as gym

from embodyflow.environments.metaworld import MetaWorldEnv
from embodyflow.seeding import derive_rng

SHORTEST, LONGEST = 0.02, 0.2
"""Bounds of the log-uniform time that a step sleeps, in seconds."""


class SlowSteps:
    """A mixin that sleeps before each step, for a time that goal, step and action decide.

    So a repeat of an episode takes the same time, and siblings of one goal take different times. Only the split for
    training sleeps, since only rollouts are timed.
    """

    def __init__(self, *, split: str = "train", **kwargs: Any) -> None:
        super().__init__(split=split, **kwargs)  # type: ignore[call-arg]
        self._is_slow, self._place = split == "train", (0, 0)

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        observation, info = super().reset(**kwargs)  # type: ignore[misc]
        self._place = (int(info["goal"]), 0)
        return observation, info

    def step(self, action: Any) -> Any:
        """Sleep, then execute an action."""
        goal, step = self._place
        if self._is_slow:
            draw = derive_rng("slow step", goal, step, action.tobytes().hex())
            time.sleep(math.exp(draw.uniform(math.log(SHORTEST), math.log(LONGEST))))
        self._place = (goal, step + 1)
        return super().step(action)  # type: ignore[misc]


class SlowMetaWorld(SlowSteps, MetaWorldEnv):
    """Meta-World with slow steps."""


gym.register(
    "SlowMetaWorld-v0", "benchmarks.robots.slow_steps:SlowMetaWorld", disable_env_checker=True, order_enforce=False
)
