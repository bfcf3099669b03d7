"""robosuite's tasks behind the interface of embodied environments."""

import importlib.util
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from expert_episodes import Env, play

# An import would load robosuite's renderer.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the extra libero")
ID = "envs:embodyflow/Robosuite-v0"


def make(split: str = "demo", max_steps: int = 60, task: str = "lift") -> Env:
    return gym.make(ID, task=task, split=split, max_steps=max_steps)


def test_the_expert_lifts_the_cube_and_episodes_are_restored() -> None:
    env, other = make(), make()
    first, succeeds = play(env, 0)
    assert succeeds and first[-1, 10] > 0.018  # its centre rests 2.1 cm above the table and must be 4 cm above it
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first) and np.array_equal(play(other, 0)[0], first)
    assert first[0, 7:10] == pytest.approx(first[0, 4:7] - first[0, 0:3], abs=1e-6)


def test_the_expert_stacks_the_cubes_and_episodes_are_restored() -> None:
    env, other = make(max_steps=80, task="stack"), make(max_steps=80, task="stack")
    assert env.unwrapped.instruction == "stack the red cube on the green cube"  # type: ignore[attr-defined]
    first, succeeds = play(env, 0)
    assert succeeds and first.shape[1] == 14
    # The centres of cubes with sides of 4 and 5 cm are 4.5 cm above each other, and the fingers let go.
    assert first[-1, 13] == pytest.approx(-0.045, abs=2e-3) and np.abs(first[-1, 11:13]).max() < 0.02
    assert first[-1, 3] > first[-10, 3]
    another, _ = play(env, 1)
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first) and np.array_equal(play(other, 0)[0], first)


def test_the_expert_stacks_after_another_policy_has_dropped_the_cube() -> None:
    """DAgger asks the expert in states that its own actions did not reach."""
    env = make(max_steps=120, task="stack")
    observation, _ = env.reset(options={"goal": 0})
    while observation["state"][10] < 0.03:
        observation, *_ = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
    for _ in range(16):  # the fingers open, and the hand leaves
        observation, *_ = env.step(np.array([0, 0, 0.5, -1], np.float32))
    assert observation["state"][10] < 0.005 and observation["state"][9] < -0.05
    ends = []
    while not any(ends):
        observation, _, *ends, info = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
    assert info["success"]


def test_cubes_lie_apart_within_the_spread() -> None:
    from embodyflow.environments.robosuite.placement import APART, draw_poses

    poses = [draw_poses(np.random.default_rng(seed), 2, 0.08, (0.0, 1.5)) for seed in range(200)]
    places, turns = (np.array([[pose[part] for pose in pair] for pair in poses]) for part in (slice(2), 2))
    assert np.abs(places).max() <= 0.08 and np.linalg.norm(places[:, 0] - places[:, 1], axis=1).min() >= APART
    assert 0 <= turns.min() < 0.1 and 1.4 < turns.max() < 1.5


def door_state(to_place: tuple[float, float, float], handle_angle: float = 0.0) -> np.ndarray:
    """Return a state of a shut door along the x axis, whose hand lacks an offset to its place at the handle.

    The handle's end is 12.5 cm from its axis in the direction of -x and 10 cm out of the door, in that of y. The hand's
    place is 1.5 cm before that end, 5.3 cm further out and 3.2 cm above it.
    """
    door, state = np.array([-0.2, -0.35, 1.1]), np.zeros(18)
    along, out, up = np.diag([-1.0, 1.0, 1.0])
    cosine, sine = np.cos(handle_angle), np.sin(handle_angle)
    handle = door + (0.125 * cosine - 0.175) * along + 0.1 * out - (0.025 + 0.125 * sine) * up
    place = handle - 0.015 * (cosine * along - sine * up) + 0.032 * (sine * along + cosine * up) + 0.053 * out
    hand = place - to_place
    state[0:3], state[3], state[17] = hand, 0.08, handle_angle
    state[4:7], state[7:10], state[10:13], state[13:16] = door, handle, door - hand, handle - hand
    return state


def test_the_expert_of_the_door_decides_by_the_state_alone() -> None:
    from embodyflow.environments.robosuite.door_expert import Opener

    act = Opener().act
    rise, across, press, turning, pull = (
        act(state).round(6)
        for state in (
            door_state((0.0, -0.2, 0.1)),  # below the handle
            door_state((0.0, -0.2, -0.05)),  # beside it, high enough
            door_state((0.0, 0.0, 0.0)),
            door_state((0.0, 0.0, 0.0), 0.7),
            door_state((0.0, 0.0, 0.0), 1.2),
        )
    )
    np.testing.assert_array_equal(rise, [0, 0, 1, -1])
    assert across[1] == -1 and abs(across[2]) <= 0.2 and across[0] == 0
    np.testing.assert_allclose(press, [0, 0, -0.8, -1])  # 4 of 5 cm
    assert turning[0] > 0.5 and turning[2] < -0.6 and turning[1] == 0  # along the arc of the handle's end
    assert pull[1] == 1 and pull[0] > 0


def test_an_episode_is_truncated_and_splits_differ() -> None:
    env = make("eval", max_steps=2)
    observation, info = env.reset(options={"goal": 0})
    assert info == {"success": False, "instruction": "lift the cube from the table", "goal": 0}
    ends = [env.step(np.zeros(4, np.float32))[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]
    assert not np.array_equal(make("train").reset(options={"goal": 0})[0]["state"], observation["state"])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"spread=1: must be from 0 to 0\.2 with task=lift"):
        gym.make(ID, task="lift", split="train", spread=1)
    with pytest.raises(ValueError, match=r"spread=0\.05: must be from 0\.06 to 0\.2 with task=stack"):
        gym.make(ID, task="stack", split="train", spread=0.05)
    with pytest.raises(ValueError, match=r"spread=0\.1: must be from 0 to 0\.05 with task=door"):
        gym.make(ID, task="door", split="train", spread=0.1)
    with pytest.raises(ValueError, match="task='push': must be one of lift, stack, door"):
        gym.make(ID, task="push", split="train")


def test_an_environment_without_frames_needs_no_gl() -> None:
    """robosuite's own renderer loads EGL and sets MUJOCO_GL where robosuite is imported."""
    code = (
        f"import os, sys, gymnasium; env = gymnasium.make('{ID}', task='lift', split='demo'); env.reset(seed=0)\n"
        "assert os.environ['MUJOCO_GL'] == 'disable' and 'OpenGL.EGL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "MUJOCO_GL": "disable"}, check=True, timeout=120)
