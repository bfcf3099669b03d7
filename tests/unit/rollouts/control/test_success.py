"""Success of control jobs in environments that report it."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from goal_runs import REACHING

import tasks
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.summary import evaluated_return_summary, return_line
from embodyflow.data.metrics import Metric
from embodyflow.data.rows_file import Journal
from embodyflow.rollouts.control_rollout import ControlRollout, Finished
from embodyflow.seeding import LARGEST_ENV_SEED, derive_seed
from embodyflow.simulation.make_env import make_env

WORDS = (
    *("experiment=reacher", *REACHING, "env.id=goal_envs:LastStepCounts-v0", "rollout.envs_per_worker=2"),
    *("rollout.num_steps=20", "rollout.num_workers=1", "evaluation={num_episodes: 8}"),
)


def engine_of(*words: str) -> ControlRollout:
    config = compose_config([*WORDS, *words])
    assert isinstance(config, ControlConfig)
    torch.manual_seed(0)
    return ControlRollout(config, 0, 1)


@pytest.fixture
def engine() -> Iterator[ControlRollout]:
    engine = engine_of()
    yield engine
    engine.close()


def is_on_the_right(engine: ControlRollout, split: str, *names: str | int) -> bool:
    """Return True if the goal of an episode with this name of its seed is on the right."""
    with closing(make_env(engine.config.env, None, split)) as env:
        observation, _ = env.reset(seed=derive_seed(0, *names) % (LARGEST_ENV_SEED + 1))
    return bool(observation["state"][4] > 0)


def training_metrics(engine: ControlRollout) -> Mapping[str, Metric]:
    """Return the metrics of the first iteration's rollout."""
    call = SimpleNamespace(run_folder=None, seed=0, iteration=1, node_id="rollout")
    return tasks.collect_steps(None, worker=engine, call=call).metrics


def test_the_last_step_of_an_episode_counts(engine: ControlRollout) -> None:
    expected = [is_on_the_right(engine, "eval", "evaluation episode", episode) for episode in range(8)]
    assert len(set(expected)) == 2
    assert engine.evaluate(range(8)).successes == expected


def test_training_reports_the_success_of_the_episodes_that_end(engine: ControlRollout) -> None:
    expected = [is_on_the_right(engine, "train", "episode", env, episode) for env in range(2) for episode in range(4)]
    rate = training_metrics(engine)["rollout/success_rate"]
    assert (rate.value, rate.weight) == (np.mean(expected), 8)


def test_a_continued_evaluation_keeps_the_successes(engine: ControlRollout, tmp_path: Path) -> None:
    whole = engine.evaluate(range(8))
    engine.evaluate(range(3), Journal(tmp_path / "journal"))
    assert engine.evaluate(range(8), Journal(tmp_path / "journal")) == whole


def test_the_evaluation_has_the_share_of_successes(engine: ControlRollout) -> None:
    metrics = tasks.evaluate_returns(None, worker=engine, call=SimpleNamespace()).metrics
    expected = np.mean([is_on_the_right(engine, "eval", "evaluation episode", episode) for episode in range(8)])
    assert metrics["eval/greedy_success_rate"].value == expected


def test_an_environment_that_says_nothing_has_no_success() -> None:
    engine = engine_of("env.id=goal_envs:ReadingInfo-v0")
    assert engine.evaluate(range(5)).successes == []
    assert "rollout/success_rate" not in training_metrics(engine)
    engine.close()


def test_other_keys_of_the_info_do_not_matter() -> None:
    engine = engine_of("env.id=goal_envs:SuccessInParts-v0", "env.adapter=null", "policy.state_dim=2")
    assert engine.evaluate(range(5)).successes == []
    engine.close()


def test_episodes_add_up() -> None:
    first = Finished([1.0], [5], [True])
    first.add(Finished([2.0, 3.0], [4, 4], [False, True]))
    assert first == Finished([1.0, 2.0, 3.0], [5, 4, 4], [True, False, True])


def test_the_summary_has_the_success_before_and_after() -> None:
    def record(iteration: int, rate: float) -> dict[str, float]:
        returns = {"eval/return": -9.0, "eval/return_low": -10.0, "eval/return_high": -8.0, "eval/num_episodes": 8.0}
        success = {"eval/greedy_success_low": rate / 2, "eval/greedy_success_high": 1.0}
        return {"iteration": iteration, "eval/greedy_success_rate": rate, **returns, **success}

    summary = evaluated_return_summary([record(0, 0.25), {"iteration": 1}, record(2, 0.75)], 2)
    assert (summary["success_rate_before"], summary["success_rate_after"]) == (0.25, 0.75)
    assert summary["success_interval_after"] == [0.375, 1.0]
    line = return_line({"return_first": None, "return_last": None, "seed": 0, "train_seconds": 1.0, **summary})
    assert "after=-9.0 success=0.750 " in line
