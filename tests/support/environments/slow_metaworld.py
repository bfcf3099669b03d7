"""Meta-World whose training steps take 40 ms longer: ``env.id=slow_metaworld:SlowMetaWorld-v0``."""

import time
from typing import Any

import gymnasium as gym

from embodyflow.environments.metaworld import MetaWorldEnv

SECONDS = 0.04


class SlowMetaWorld(MetaWorldEnv):
    """Meta-World that is slow where the policy is trained, so that versions come within episodes."""

    def __init__(self, *, split: str = "train", **kwargs: Any) -> None:
        super().__init__(split=split, **kwargs)
        self._seconds = SECONDS if split == "train" else 0.0

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)


gym.register("SlowMetaWorld-v0", "slow_metaworld:SlowMetaWorld", disable_env_checker=True)
