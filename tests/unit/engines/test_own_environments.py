"""Environments of one's own, without the adapter: played as they are, or refused by one line."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from embodyflow.config import RunConfig
from embodyflow.engines.embodied_rollout import EmbodiedRollout
from embodyflow.engines.replay import first_difference

DRAWS = (0, 1, "rollout")


class Line(gym.Env[Any, np.ndarray]):
    """A point on a line that passes its goal in the third step, and goes on."""

    tasks = ("go",)
    instruction = "pass the goal"
    num_goals: Mapping[str, int] = MappingProxyType({"train": 8, "demo": 4, "eval": 3})
    observation_space: gym.Space[Any] = Dict(state=Box(-np.inf, np.inf, (2,), np.float32))
    action_space: gym.Space[Any] = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, task: str, split: str, max_steps: int) -> None:
        self.max_steps = max_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.steps = float((options or {}).get("goal", 0)), 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x, self.steps = self.x + float(action[0]), self.steps + 1
        return self.observe(), 0.0, False, self.steps >= self.max_steps, {"success": self.steps == 3}

    def observe(self) -> Any:
        return {"state": np.array([self.x, self.steps], np.float32)}

    def expert_action(self) -> np.ndarray:
        return np.ones(1, np.float32)


gym.register("tests/Line-v0", Line)


@pytest.fixture
def config_of(tiny_config: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Compose a tiny run in one of these environments."""

    def compose(name: str, *overrides: str) -> RunConfig:
        own = (f"env.id={__name__}:tests/{name}", "env.tasks=[go]", "policy.state_dim=2", "policy.action_dim=1")
        return tiny_config(*own, *overrides)

    return compose


def new_rollout(config: RunConfig) -> EmbodiedRollout:
    torch.manual_seed(0)  # the weights
    return EmbodiedRollout(config, 0, 1)


@pytest.mark.parametrize("chunk_size", [1, 5])
def test_a_success_in_the_middle_of_a_chunk_counts(config_of: Callable[..., RunConfig], chunk_size: int) -> None:
    config = config_of("Line-v0", f"policy.chunk_size={chunk_size}")
    rollout = new_rollout(config)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    assert rows["success"].all() and (rows["num_steps"] == 20).all() and not rows["terminated"].any()
    assert first_difference(config, {name: column[0] for name, column in rows.items()}) is None
    assert rollout.demonstrate()["num_steps"].tolist() == [20, 20]
    rollout.close()
