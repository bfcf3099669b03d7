"""robosuite's tasks with cubes behind the interface of embodied environments."""

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

    poses = [draw_poses(np.random.default_rng(seed), 2, 0.08) for seed in range(200)]
    places = np.array([[pose[:2] for pose in pair] for pair in poses])
    assert np.abs(places).max() <= 0.08 and np.linalg.norm(places[:, 0] - places[:, 1], axis=1).min() >= APART


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
    with pytest.raises(ValueError, match="task='push': must be one of lift, stack"):
        gym.make(ID, task="push", split="train")


def test_an_environment_without_frames_needs_no_gl() -> None:
    """robosuite's own renderer loads EGL and sets MUJOCO_GL where robosuite is imported."""
    code = (
        f"import os, sys, gymnasium; env = gymnasium.make('{ID}', task='lift', split='demo'); env.reset(seed=0)\n"
        "assert os.environ['MUJOCO_GL'] == 'disable' and 'OpenGL.EGL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "MUJOCO_GL": "disable"}, check=True, timeout=120)
