"""robosuite's Door: its latch, its states, and the expert that opens it."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from expert_episodes import Env, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the extra libero"),
]


def make() -> Env:
    return gym.make("envs:embodyflow/Robosuite-v0", task="door", split="demo", max_steps=150)


@pytest.fixture(scope="module")
def env() -> Env:
    return make()


def test_the_expert_opens_the_door_and_episodes_are_restored(env: Env) -> None:
    assert env.unwrapped.instruction == "turn the handle and open the door"  # type: ignore[attr-defined]
    first, succeeds = play(env, 0)
    hinge, handle = first[:, 16], first[:, 17]
    assert succeeds and hinge[-1] > 0.3 >= hinge[-2] and len(first) < 70
    assert handle[np.argmax(hinge > 0.02)] > 1.0  # the latch has let go
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first) and np.array_equal(play(make(), 0)[0], first)


def test_a_state_has_the_places_of_door_and_handle_and_their_offsets_from_the_gripper(env: Env) -> None:
    states = np.stack([env.reset(options={"goal": goal})[0]["state"] for goal in range(40)])
    hand, door, handle = states[:, 0:3], states[:, 4:7], states[:, 7:10]
    assert states[:, 10:13] == pytest.approx(door - hand, abs=1e-6)
    assert states[:, 13:16] == pytest.approx(handle - hand, abs=1e-6)
    assert states[:, 16:18] == pytest.approx(0, abs=1e-3)
    turns = np.arctan2(*(handle - door).T[1::-1])  # about the vertical axis
    assert 0.2 < np.ptp(turns) <= 0.25
    assert (np.ptp(door[:, :2], axis=0) < 0.1).all() and np.ptp(door[:, 0]) > 0.015


def test_the_latch_keeps_a_door_shut_whose_handle_is_not_turned(env: Env) -> None:
    observation, _ = env.reset(options={"goal": 0})
    sim = env.unwrapped._sim.sim  # type: ignore[attr-defined]
    hinge = sim.model.get_joint_qvel_addr("Door_hinge")
    for _ in range(20):
        sim.data.qvel[hinge] = 1.0  # radians per second, as if somebody pulled
        observation, _, terminated, _, info = env.step(np.zeros(4, np.float32))
    assert observation["state"][16] < 0.05 and not terminated and not info["success"]


def test_the_expert_opens_the_door_after_the_handle_has_slipped(env: Env) -> None:
    """DAgger asks the expert in states that its own actions did not reach."""
    observation, _ = env.reset(options={"goal": 0})
    for _ in range(100):
        if observation["state"][16] >= 0.2:
            break
        observation, *_ = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
    for _ in range(12):  # the hand leaves the handle, which turns back while the door is ajar
        observation, *_ = env.step(np.array([-0.3, -0.3, 1, -1], np.float32))
    assert observation["state"][16] > 0.1 and abs(observation["state"][17]) < 0.2
    ends = []
    while not any(ends):
        observation, _, *ends, info = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
    assert info["success"]
