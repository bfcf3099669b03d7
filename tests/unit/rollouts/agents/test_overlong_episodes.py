"""DAPO's penalty for overlong episodes, whoever rewards them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from embodyflow.errors import RewardError
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager
from embodyflow.rollouts.agents.agent_rollout import AgentRollout

RIGHT = Sample(7, "27+95=", "## 122", "122", "test", 3, True)
SAMPLES = [replace(RIGHT, uid=7 + number, num_tokens=length) for number, length in enumerate((60, 100, 100))]


def scores_of(rewarded: list[bool], by_agent: list[bool]) -> list[Any]:
    manager = {"name": "dapo", "max_tokens": 100, "overlong": {"buffer": 40, "penalty": 2.0}}
    rewards = build_reward_manager(RewardConfig(function={"name": "exact_match"}, manager=manager))
    batch = {
        "rewarded": torch.tensor(rewarded),
        "agents_rewarded": torch.tensor(by_agent),
        "own_reward": torch.tensor([5.0, 6.0, 7.0]),
        "own_success": torch.tensor([False, True, False]),
    }
    return AgentRollout._score(SimpleNamespace(_rewards=rewards), batch, SAMPLES)  # type: ignore[arg-type]


def test_an_overlong_episode_loses_reward_whoever_gave_it() -> None:
    scores = scores_of([True, True, False], [False] * 3)
    assert [score.reward for score in scores] == [5.0, 4.0, -1.0]
    assert [score.correct for score in scores] == [False, True, True]
    assert [score.parts["overlong"] for score in scores] == [0.0, -2.0, -2.0]


def test_the_penalty_has_no_place_where_each_agent_has_a_reward_of_its_own() -> None:
    with pytest.raises(RewardError, match=r"^reward of row 8: reward.manager.name=dapo: allowed is a workflow that"):
        scores_of([True] * 3, [False, True, False])
