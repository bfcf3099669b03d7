"""Meta-World with the faults of a plan: ``env.id=faulty_metaworld:FaultyMetaWorld-v0 +env.kwargs.plan=…``."""

from typing import Any

import gymnasium as gym
from faulty_envs import Faulty

from embodyflow.environments.metaworld import MetaWorldEnv


class FaultyMetaWorld(Faulty, MetaWorldEnv):  # type: ignore[misc]
    """Meta-World with faults, except in demonstrations, which have no supervision."""

    def __init__(self, *, split: str = "train", **kwargs: Any) -> None:
        super().__init__(split=split, **kwargs)
        self._demonstrates = split == "demo"

    def _fault(self) -> str | None:
        return None if self._demonstrates else super()._fault()


gym.register("FaultyMetaWorld-v0", "faulty_metaworld:FaultyMetaWorld", disable_env_checker=True)
