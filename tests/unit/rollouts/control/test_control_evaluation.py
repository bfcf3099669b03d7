"""Evaluation of control jobs against a plain Gymnasium loop, and its effect on training: none."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

import tasks
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import Columns
from embodyflow.data.confidence_intervals import mean_interval
from embodyflow.errors import ConfigError
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.seeding import LARGEST_ENV_SEED, derive_seed

WORDS = ["experiment=reacher", "algorithm=ppo", "rollout.envs_per_worker=2", "rollout.num_steps=30", "env.max_steps=20"]


@pytest.fixture(scope="module")
def config():
    return compose_config([*WORDS, "evaluation={num_episodes: 5}"])


def fresh(config, rank=0, world_size=1):
    torch.manual_seed(0)
    return ControlRollout(config, rank, world_size)


def plain_return(engine, episode):
    env = gym.make("Reacher-v5", max_episode_steps=20)
    state, _ = env.reset(seed=derive_seed(0, "evaluation episode", episode) % (LARGEST_ENV_SEED + 1))
    total, over = 0.0, False
    while not over:
        mean, _ = engine.policy.model(torch.from_numpy(state.astype(np.float32))[None])
        action = np.clip(mean.detach().numpy()[0], -1, 1)
        state, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(np.float32(reward)), terminated or truncated
    env.close()
    return total


def test_returns_are_those_of_a_plain_loop(config):
    engine = fresh(config)
    played = engine.evaluate(range(5))
    assert played.lengths == [20] * 5
    assert played.returns == pytest.approx([plain_return(engine, episode) for episode in range(5)], abs=1e-4)
    assert engine.evaluate(range(5)) == played
    engine.close()


def test_ranks_share_the_episodes(config):
    whole, parts = fresh(config), [fresh(config, rank, 2) for rank in range(2)]
    shares = [part.evaluate(range(part.rank, 5, part.world_size)).returns for part in parts]
    assert [len(share) for share in shares] == [3, 2]
    expected = whole.evaluate(range(5)).returns
    assert shares == [expected[0::2], expected[1::2]]
    for engine in (whole, *parts):
        engine.close()


def test_training_rows_do_not_depend_on_evaluations(config):
    def rows(evaluates: bool) -> Columns:
        engine = fresh(config)
        for iteration in (1, 2):
            columns, _ = engine.collect(iteration, (0, iteration, "rollout"))
            if evaluates:
                engine.evaluate(range(5))
        engine.close()
        return columns

    left, right = rows(True), rows(False)
    for name, column in left.items():
        np.testing.assert_array_equal(column, right[name])


def test_the_node_reports_mean_and_square(config):
    engine = fresh(config)
    returns = np.array(engine.evaluate(range(5)).returns)
    metrics = tasks.evaluate_returns(None, worker=engine, call=SimpleNamespace()).metrics
    assert (metrics["eval/return"].value, metrics["eval/return"].weight) == (pytest.approx(returns.mean()), 5)
    assert metrics["eval/squared_return"].value == pytest.approx((returns**2).mean())
    engine.close()


@pytest.mark.parametrize(("count", "quantile"), [(5, 2.7764), (10, 2.2622), (30, 2.0452)])
def test_intervals_have_students_quantiles(count, quantile):
    low, high = mean_interval(3.0, 2.0, count)
    assert high - 3.0 == pytest.approx(quantile * 2.0 / count**0.5, rel=5e-3) == 3.0 - low


def test_too_few_episodes_are_refused():
    with pytest.raises(ConfigError, match=r"evaluation\.num_episodes=2"):
        compose_config([*WORDS, "evaluation={num_episodes: 2}"])
