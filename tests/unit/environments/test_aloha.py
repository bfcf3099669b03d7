"""ALOHA's transfer of a cube behind the interface of embodied environments, and its scripted expert."""

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from expert_episodes import Env, play

from embodyflow.environments.aloha.arm import FOREARM, HAND, SHOULDER, UPPER, joints
from embodyflow.environments.aloha.expert import GRIP, WAIT, Hand, hand_over

ID = "envs:embodyflow/Aloha-v0"
needs_package = pytest.mark.skipif(importlib.util.find_spec("gym_aloha") is None, reason="needs the extra envs")


def make(split: str = "demo", max_steps: int = 60, **kwargs: float) -> Env:
    return gym.make(ID, task="transfer_cube", split=split, max_steps=max_steps, **kwargs)


def still(right: float = 0.0, closes: float = -1.0) -> np.ndarray:
    """Return an action that moves the right hand to a side."""
    return np.array([0, 0, 0, -1, 0, right, 0, closes], np.float32)


@pytest.mark.parametrize("pitch", [0.0, np.pi / 3])
def test_the_joints_bring_the_point_between_the_fingers_to_its_place(pitch: float) -> None:
    point = np.array([0.38, -0.1, 0.06])
    waist, shoulder, elbow, wrist = joints(point, pitch)
    upper = UPPER @ np.array([[np.cos(shoulder), -np.sin(shoulder)], [np.sin(shoulder), np.cos(shoulder)]])
    lengths = {shoulder + elbow: FOREARM, shoulder + elbow + wrist: HAND}
    outwards, upwards = upper + sum(far * np.array([np.cos(fall), -np.sin(fall)]) for fall, far in lengths.items())
    assert [outwards * np.cos(waist), outwards * np.sin(waist), upwards + SHOULDER] == pytest.approx(point)
    assert shoulder + elbow + wrist == pytest.approx(pitch)
    assert np.isfinite(joints(np.array([2.0, 0.0, 0.0]), pitch)).all()


@needs_package
def test_the_expert_hands_the_cube_over_and_episodes_are_restored() -> None:
    env, other = make(), make()
    first, succeeds = play(env, 0)
    assert succeeds and first.shape[1] == 24 and first[-1, 23] > 0.15
    assert np.linalg.norm(first[-1, 17:20]) < 0.03 and np.linalg.norm(first[-1, 20:23]) < 0.03  # both hands have it
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first) and np.array_equal(play(other, 0)[0], first)


@needs_package
def test_the_expert_solves_most_starts() -> None:
    env = make()
    assert np.mean([play(env, goal)[1] for goal in range(16)]) >= 0.9


@needs_package
def test_the_expert_goes_on_where_another_policy_has_come() -> None:
    env: Any = make()
    for goal in range(4):
        env.reset(options={"goal": goal})
        for _ in range(3):
            env.step(still(right=1.0, closes=1.0))  # away from where the expert is going, with closed fingers
        over, truncated = False, False
        while not (over or truncated):
            _, _, over, truncated, info = env.step(env.unwrapped.expert_action())
        assert info["success"] is True


@needs_package
def test_the_state_describes_hands_and_cube() -> None:
    env = make(spread=0.05)
    observation, info = env.reset(options={"goal": 3})
    state = observation["state"]
    assert state[17:20] == pytest.approx(state[14:17] - state[0:3], abs=1e-6)
    assert state[20:23] == pytest.approx(state[14:17] - state[7:10], abs=1e-6)
    assert state[3:6] == pytest.approx(0.0, abs=1e-4) and state[10:13] == pytest.approx(0.0, abs=1e-4)
    assert state[16] == pytest.approx(0.02) and state[23] == pytest.approx(0.0, abs=1e-6)
    assert np.abs(state[14:16] - [0.1, 0.5]).max() <= 0.05 and info["success"] is False
    for _ in range(4):
        moved, reward, *_ = env.step(still(right=1.0))
    assert moved["state"][8] - state[8] == pytest.approx(0.12, abs=0.02) and reward == 0.0
    assert moved["state"][0:3] == pytest.approx(state[0:3], abs=0.01)
    for _ in range(10):
        closed = env.step(still(closes=1.0))[0]["state"]
    assert closed[13] < 0.06 < 0.1 < closed[6]


@needs_package
def test_rewards_are_the_stages_of_the_package() -> None:
    env: Any = make()
    seen = set()
    for goal in range(6):
        env.reset(options={"goal": goal})
        rewards, over = [], False
        while not over:
            _, reward, over, _, info = env.step(env.unwrapped.expert_action())
            rewards.append(reward)
        assert rewards[-1] == 1.0 and info["success"] is True and max(rewards[:-1]) < 1.0
        seen |= set(rewards)
    assert {0.0, 0.25, 0.5, 1.0} <= seen <= {0.0, 0.25, 0.5, 0.75, 1.0}  # the cube is held on the table and above it


@needs_package
def test_a_goal_stays_in_reach_and_near_a_hand_that_is_blocked() -> None:
    env = make()
    env.reset(options={"goal": 0})
    for _ in range(40):
        state = env.step(np.ones(8, np.float32))[0]["state"]
    assert state[0:3] + state[3:6] == pytest.approx([0.3, 0.7, 0.4], abs=0.05)
    env.reset(options={"goal": 0})
    for _ in range(30):  # the hands meet
        state = env.step(np.array([1, 0, -0.04, -1, -1, 0, 0, -1], np.float32))[0]["state"]
    assert 0.03 < max(state[3], -state[10]) < 0.09


def test_the_expert_holds_what_is_between_the_fingers_and_opens_closed_ones() -> None:
    cube = np.array([0.1, 0.5, 0.02])
    place = cube + GRIP
    left = Hand(WAIT, WAIT, 0.114)
    closing, bringing, empty = (hand_over(left, Hand(place, place, width), cube) for width in (0.114, 0.083, 0.045))
    assert closing[7] == 1 and closing[4:7] == pytest.approx(0.0)
    assert bringing[7] == 1 and bringing[6] == 0.5 and bringing[4] == -0.5
    assert empty[7] == -1
    assert all(action[:4] == pytest.approx([0, 0, 0, -1]) for action in (closing, bringing, empty))


@pytest.mark.parametrize("spread", [-0.1, 0.2])
def test_wrong_arguments_are_refused(spread: float) -> None:
    with pytest.raises(ValueError, match=rf"spread={spread}: must be from 0 to 0.1"):
        make(spread=spread)
