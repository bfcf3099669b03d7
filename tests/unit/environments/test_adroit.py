"""The Adroit hand with a pen: success, dropped pens and rewards."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest

from embodyflow.environments.adroit import FALLEN, HEIGHT, Pen

pytest.importorskip("gymnasium_robotics", reason="needs gymnasium-robotics")
ID = "gymnasium_robotics:AdroitHandPen-v1"
STEPS = 100
"""Steps in which uniform actions drop the pen."""


@pytest.fixture
def pen() -> Iterator[Pen]:
    env = Pen(gym.make(ID, max_episode_steps=STEPS, disable_env_checker=True))
    yield env
    env.close()


def test_a_dropped_pen_ends_the_episode(pen: Pen) -> None:
    pen.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        observation, _, terminated, _, info = pen.step(rng.uniform(-1, 1, 24).astype(np.float32))
        assert terminated == (observation[HEIGHT] < FALLEN) and (not terminated or info["is_success"] is False)
        if terminated:
            break
    assert terminated


def test_rewards_are_a_tenth_and_success_is_reported(pen: Pen) -> None:
    plain = gym.make(ID, max_episode_steps=STEPS, disable_env_checker=True)
    rng, told = np.random.default_rng(0), set()
    for seed in range(2):
        assert np.array_equal(pen.reset(seed=seed)[0], plain.reset(seed=seed)[0])
        if seed == 1:  # the pen already points where it should
            for env in (pen, plain):
                env.unwrapped.model.body_quat[env.unwrapped.target_obj_body_id] = [1, 0, 0, 0]  # type: ignore[attr-defined]
        for _ in range(5):
            action = 0.1 * rng.standard_normal(24, np.float32)
            observation, reward, _, truncated, info = pen.step(action)
            theirs = plain.step(action)
            assert np.array_equal(observation, theirs[0]) and reward == pytest.approx(0.1 * float(theirs[1]))
            assert info["is_success"] is bool(theirs[4]["success"]) and truncated == theirs[3]
        told.add(info["is_success"])
    assert told == {False, True}
    plain.close()


def test_the_observation_has_the_pen_where_the_docstring_says(pen: Pen) -> None:
    observation, _ = pen.reset(seed=0)
    hand = pen.unwrapped
    assert np.array_equal(observation[24:27], hand.data.xpos[hand.obj_body_id])  # type: ignore[attr-defined]
    assert np.linalg.norm(observation[36:39]) == pytest.approx(1.0, abs=1e-6)
    assert observation[42:45] == pytest.approx(observation[33:36] - observation[36:39])
