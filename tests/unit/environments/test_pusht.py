"""PushT behind the interface of embodied environments, and its scripted expert."""

import importlib.util
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml
from expert_episodes import Env, play

from embodyflow.environments.pusht.shape import AGENT_RADIUS, TARGET, contacts, corners, distance

ID = "envs:embodyflow/PushT-v0"
CONFIGURED = Path(__file__).parents[3] / "configs/env/reach_lift_pusht.yaml"
needs_package = pytest.mark.skipif(importlib.util.find_spec("gym_pusht") is None, reason="needs the extra pusht")


def make(split: str = "demo", max_steps: int = 300, **kwargs: float) -> Env:
    return gym.make(ID, task="push_t", split=split, max_steps=max_steps, **kwargs)


@needs_package
def test_the_expert_solves_the_configured_starts() -> None:
    member = yaml.safe_load(CONFIGURED.read_text())["members"]["pusht"]
    env = make(max_steps=member["max_steps"], **member["kwargs"])
    assert np.mean([play(env, goal)[1] for goal in range(10)]) >= 0.8


@needs_package
@pytest.mark.slow
def test_the_expert_solves_pusht_as_published() -> None:
    env = make()
    assert np.mean([play(env, goal)[1] for goal in range(20)]) >= 0.8


@needs_package
def test_episodes_are_restored() -> None:
    env, other = make(max_steps=20), make(max_steps=20)
    first, another = play(env, 0)[0], play(env, 1)[0]
    assert not np.array_equal(first[0], another[0])
    assert np.array_equal(play(env, 0)[0], first) and np.array_equal(play(other, 0)[0], first)


@needs_package
def test_the_state_describes_disc_and_t() -> None:
    env = make(spread=60.0, turn=0.0)
    observation, info = env.reset(options={"goal": 3})
    state = observation["state"].astype(np.float64) * 256
    to_target = state[20:].reshape(8, 2)
    # Without a turn all corners are equally far from their targets.
    assert to_target == pytest.approx(np.tile(to_target[0], (8, 1)), abs=1e-3)
    assert 30 <= np.hypot(*to_target[0]) <= 60
    assert state[4:20].reshape(8, 2) + state[:2] + to_target == pytest.approx(corners(TARGET), abs=1e-3)
    assert info["success"] is False and 0 < info["coverage"] < 0.95
    moved, *_ = env.step(np.array([1.0, 0.0], np.float32))
    assert moved["state"][0] > observation["state"][0] and moved["state"][2] > 0


@needs_package
def test_an_episode_is_truncated_and_arguments_are_checked() -> None:
    env = make("eval", max_steps=2)
    env.reset(options={"goal": 0})
    assert [env.step(np.zeros(2, np.float32))[2:4] for _ in range(2)] == [(False, False), (False, True)]
    for name, value, message in (
        ("spread", 10.0, "spread=10.0: must be from 30 to 150"),
        ("turn", 4.0, "turn=4.0: must be from 0 to pi"),
        ("coverage", 1.0, "coverage=1.0: must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**{name: value})


def test_contacts_lie_on_the_outline_with_outward_normals() -> None:
    points, normals = contacts(12.0)
    pose = np.zeros(3)
    assert distance(points, pose) == pytest.approx(np.zeros(len(points)), abs=1e-9)
    free = distance(points + AGENT_RADIUS * normals, pose)
    # A disc does not fit into the two inner corners of the T, where the bar and the stem meet.
    assert np.mean(free > AGENT_RADIUS - 1e-9) > 0.8 and (distance(points + 0.5 * normals, pose) > 0.49).all()
