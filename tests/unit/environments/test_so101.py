"""LeRobot's arm SO-101 behind the adapter, and its scripted expert."""

import importlib.util
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from expert_episodes import play

from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.environments.so101 import CAREFUL, GRASP, HOLD, PickAndPlace, pick_and_place
from embodyflow.simulation.make_env import first_task, make_env

ID = "lerobot_env_so101:lerobot_env_so101/SO101PickPlace-v0"
AWAY = [0.1, 0.1, 0.0]
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("lerobot_env_so101") is None, reason="needs the extra so101"
)


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    """Yield the environment of ``configs/env/so101.yaml``."""
    config = cast(EmbodiedConfig, compose_config(["experiment=so101"])).env
    made = make_env(config, first_task(config), "demo")
    yield made
    made.close()


def asked(opening: float, hand: np.ndarray, to_goal: list[float], height: float = 0.0) -> np.ndarray:
    """Return the expert's action for a hand at a place relative to the block, whose goal is where it is."""
    state = np.concatenate([np.zeros(3), [opening], -hand, to_goal, [height]], dtype=np.float32)
    return pick_and_place(cast(Any, None), state)


@needs_package
def test_the_expert_places_the_block_and_episodes_are_restored(env: Any) -> None:
    first, succeeds = play(env, 0)
    assert succeeds and first.shape[1] == 11
    assert first[:, 10].max() > 0.03 and np.linalg.norm(first[-1, 7:9]) < 0.03
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first)


@needs_package
def test_the_expert_solves_most_starts(env: Any) -> None:
    assert np.mean([play(env, goal)[1] for goal in range(8)]) >= 0.8


@needs_package
def test_the_expert_places_the_block_after_another_policy_has_dropped_it(env: Any) -> None:
    """The package's own controller counts steps, and would carry on without the block."""
    observation, _ = env.reset(options={"goal": 0})
    while observation["state"][10] < 0.02:
        observation, *_ = env.step(env.unwrapped.expert_action())
    for _ in range(6):  # the jaw opens, and the hand leaves
        observation, *_ = env.step(np.array([0, 0, 0.6, -1], np.float32))
    assert observation["state"][10] < 0.005 and observation["state"][6] < -0.04
    ends, info = [False, False], {}
    while not any(ends):
        observation, _, *ends, info = env.step(env.unwrapped.expert_action())
    assert info["success"]


@needs_package
def test_the_state_has_the_package_s_goal_of_the_hand(env: Any) -> None:
    observation, _ = env.reset(options={"goal": 0})
    arm, rng = env.unwrapped.inner.unwrapped, np.random.default_rng(0)
    assert observation["state"][0:3] == pytest.approx(0.0, abs=1e-6)
    for step in range(12):
        action = rng.uniform(-1, 1, 4) if step % 3 else np.zeros(4)  # zeros let the package's goal stay, too
        state = env.step(action.astype(np.float32))[0]["state"]
        assert arm.ik_point_pos + state[0:3] == pytest.approx(arm._target_ee_pos, abs=1e-6)
        assert arm.ik_point_pos + state[4:7] == pytest.approx(arm.data.sensor("block_pos").data, abs=1e-6)
        assert arm.data.sensor("block_pos").data + state[7:10] == pytest.approx(arm.goal_pos, abs=1e-6)


@needs_package
def test_the_goal_stays_near_a_hand_that_cannot_follow(env: Any) -> None:
    env.reset(options={"goal": 0})
    for _ in range(14):  # farther than the arm reaches
        state = env.step(np.array([1, 1, 1, -1], np.float32))[0]["state"]
    assert 0.05 < np.abs(state[0:3]).max() < 0.065


@needs_package
def test_an_environment_that_scales_actions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"action_scale=0.025: must be 1.0"):
        PickAndPlace(gym.make(ID, action_scale=0.025))


def test_the_expert_closes_at_the_block_carries_what_it_holds_and_opens_an_empty_jaw() -> None:
    closing, carrying, empty = asked(0.7, GRASP, AWAY), asked(0.3, HOLD, AWAY), asked(0.0, HOLD, AWAY)
    assert closing == pytest.approx([0, 0, 0, 1], abs=1e-6)
    assert carrying == pytest.approx([0, 0, CAREFUL, 1])
    assert empty[3] == -1


def test_the_expert_lowers_the_block_over_its_goal_and_opens_there() -> None:
    over, above = asked(0.3, HOLD, [0.1, 0.0, -0.05], 0.05), asked(0.3, HOLD, [0.0, 0.0, -0.05], 0.05)
    assert over == pytest.approx([CAREFUL, 0, 0, 1], abs=1e-6)
    assert above == pytest.approx([0, 0, -CAREFUL, 1])
    assert asked(0.3, HOLD, [0.01, 0.0, 0.0]) == pytest.approx([0, 0, 0, -1])
