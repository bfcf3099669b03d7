"""A sparse reward that off-policy training learns with hindsight alone."""

from pathlib import Path
from statistics import mean

import pytest
from goal_runs import HINDSIGHT
from off_policy_runs import OffPolicyRun

LEARN = (
    *("env.max_steps=20", "policy.hidden_size=64", "algorithm.gamma=0.9", "trainer.learning_rate=2e-3"),
    *("critic.learning_rate=2e-3", "off_policy.batch_size=128", "off_policy.random_transitions=200"),
    *("off_policy.replay_capacity=10000", "rollout.num_steps=20"),
)


@pytest.mark.parametrize(
    "algorithm", [("algorithm=sac", "off_policy.temperature.initial=0.1"), ("algorithm=td3",)], ids=["sac", "td3"]
)
def test_a_point_reaches_goals_with_hindsight_and_not_without(algorithm: tuple[str, ...], tmp_path: Path) -> None:
    """The reward is -1 in each of 20 steps outside of the goal, which takes 5 steps to reach."""
    ends = {}
    for name, words in {"hindsight": (), "plain": ("off_policy.hindsight=null",)}.items():
        run = OffPolicyRun(tmp_path / name, [*HINDSIGHT, *LEARN, *algorithm, *words])
        before = mean(run.rollout.evaluate(range(20)).returns)
        run.iterate(range(1, 41))
        ends[name] = mean(run.rollout.evaluate(range(20)).returns)
        run.close()
        assert before < -18
    assert ends["hindsight"] > -8 and ends["plain"] < -18
