"""Brax's environments, if the extra brax is installed: seeds, masked resets, and rollouts that a worker repeats."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import envs  # noqa: F401 registers the environment
from embodyflow.cli.environments.check_env import show
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError
from embodyflow.rollouts.control_rollout import ControlRollout

pytestmark = [pytest.mark.envs, pytest.mark.integration]

WORDS = (
    *("experiment=half_cheetah", "env=brax", "env.max_steps=25", "rollout.num_workers=1"),
    *("rollout.envs_per_worker=4", "rollout.num_steps=30"),
)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("brax", reason="needs the extra brax")


def rollout(*words: str) -> ControlRollout:
    config: Any = compose_config([*WORDS, *words])
    torch.manual_seed(0)
    return ControlRollout(config, 0, 1)


def test_lanes_have_seeds_of_their_own_and_end_by_themselves() -> None:
    env = gym.make_vec(
        "embodyflow/Brax-v0", 3, vectorization_mode="vector_entry_point", task_id="halfcheetah", max_episode_steps=4
    )
    first, _ = env.reset(seed=[5, 6, 7])
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 3, 6)).astype(np.float32)
    steps = [env.step(each) for each in actions]
    assert [step[3].tolist() for step in steps] == [[False] * 3] * 3 + [[True] * 3]
    again, _ = env.reset(seed=[0, 6, 0], options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(again[1], first[1]) and np.array_equal(again[0], steps[-1][0][0])
    with pytest.raises(ValueError, match="allowed is reset_mask"):
        env.reset(seed=1, options={"wind": 3})
    one, other = (env.reset(seed=None)[0] for _ in range(2))
    assert not np.array_equal(one, other)
    env.close()


def test_check_env_accepts_it() -> None:
    assert show(None, ["env=brax", "max_steps=25"]) == 0


def test_an_unknown_task_is_one_line() -> None:
    with pytest.raises(ConfigError, match="task_id=cheetah: Brax has ant, fast, halfcheetah") as caught:
        compose_config([*WORDS, "env.kwargs.task_id=cheetah"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_processes", [0, 1])
def test_another_worker_repeats_the_rows(num_processes: int, tmp_path: Path) -> None:
    one = rollout()
    played = [one.collect(i, (0, i, "rollout"), tmp_path)[0] for i in (1, 2)]
    one.close()
    other = rollout(f"rollout.env_processes={num_processes}")
    rows, _ = other.collect(2, (0, 2, "rollout"), tmp_path)
    other.close()
    assert digest_of(dict(rows)) == digest_of(dict(played[1]))
