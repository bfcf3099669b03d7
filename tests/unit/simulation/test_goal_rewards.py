"""Rewards of other goals are the environment's own, and environments that do not give them are refused in one line."""

import numpy as np
import pytest
from goal_runs import HINDSIGHT, REACHING

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.simulation.make_env import goal_rewards

ACHIEVED = np.array([[0, 0], [0.5, 0.5], [0.5, 0]], np.float32)
WANTED = np.array([[0, 0.05], [0, 0], [0.5, 0.2]], np.float32)


def composed(*words: str) -> object:
    chosen = {word.partition("=")[0]: word for word in ("experiment=pendulum", *HINDSIGHT, *words)}
    return compose_config(list(chosen.values()))


def test_rewards_and_ends_of_other_goals_are_the_environments() -> None:
    for words, terminated in (
        ((), [False, False, False]),
        (("env.id=goal_envs:Ending-v0",), [True, False, False]),
        (("env.adapter.success_reward=0",), [True, False, False]),
    ):
        goals = goal_rewards(composed(*words).env)  # type: ignore[attr-defined]
        rewards = goals.rewards(ACHIEVED, WANTED)
        assert rewards.tolist() == [0, -1, -1] and rewards.dtype == np.float32
        assert goals.terminated(ACHIEVED, WANTED, rewards).tolist() == terminated
        assert (goals.achieved, goals.desired) == (slice(2, 4), slice(4, 6))
        goals.close()


MISTAKES = {
    "env.id=goal_envs:WithoutReward-v0": (
        "off_policy.hindsight: needs the environment's compute_reward(achieved_goal, desired_goal, info), which it does"
    ),
    "env.id=goal_envs:OneByOne-v0": (
        "off_policy.hindsight: compute_reward gave shape () for 4 goals; allowed is one finite number for each"
    ),
    "env.id=goal_envs:Mixing-v0": "off_policy.hindsight: compute_reward gives another reward for a goal among others",
    "env.id=goal_envs:OtherReward-v0": (
        "off_policy.hindsight: compute_reward gives -1 for a first step whose reward is -1.5; allowed are"
    ),
    "env.id=goal_envs:ReadingInfo-v0": "off_policy.hindsight: compute_reward raised KeyError for four goals and empty",
    "env.id=goal_envs:OfTwoSizes-v0 policy.state_dim=5": (
        "off_policy.hindsight: needs goals of one shape, 'achieved_goal' has (1,) and 'desired_goal' (2,)"
    ),
    "env.id=Pendulum-v1 env.adapter.state=null policy.state_dim=3 policy.action_dim=1": (
        "env.adapter.state: must show 'achieved_goal' with off_policy.hindsight, shows no dict; allowed is ["
    ),
    "env.adapter.state=[observation,desired_goal] policy.state_dim=4": (
        "env.adapter.state: must show 'achieved_goal' with off_policy.hindsight, shows 'observation', 'desired_goal'; "
    ),
    "env.adapter.success_info=is_success": (
        "env.adapter.success_info=is_success: must be null with off_policy.hindsight, since it ends episodes and says"
    ),
    "off_policy.num_return_steps=2": "off_policy.num_return_steps=2: allowed is 1 with off_policy.hindsight",
    "off_policy.hindsight.ratio=0": "off_policy.hindsight.ratio=0: ",
    "off_policy.hindsight.strategy=past": "off_policy.hindsight.strategy='past': input should be 'future' or 'final'",
    "off_policy.hindsight.goals=4": "off_policy.hindsight.goals=4: no such key",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_cannot_be_relabelled_is_one_line(words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        composed(*words.split())
    assert str(refusal.value).startswith(MISTAKES[words]) and "\n" not in str(refusal.value)


def test_the_same_environments_are_allowed_without_hindsight() -> None:
    for name in ("WithoutReward", "OneByOne", "ReadingInfo"):
        words = [word for word in REACHING if not word.startswith("env.id")]
        compose_config(["experiment=pendulum", *words, f"env.id=goal_envs:{name}-v0"])
