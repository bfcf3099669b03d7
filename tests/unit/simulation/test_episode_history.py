"""Tests of bit-identical replays of episodes from seed, options and actions."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.simulation.episode_history import EpisodeHistory, EpisodeRecorder
from embodyflow.simulation.vector.env import EnvError, VectorEnv

STEPS = 24


def reach(goal_split="train"):
    return gym.make("envs:embodyflow/MetaWorld-v0", task="reach-v3", split=goal_split, max_steps=STEPS)


ENVIRONMENTS = {
    "by rollout": partial(gym.make, "HalfCheetah-v5", max_episode_steps=STEPS),
    "by rollout, with bodies": partial(gym.make, "Reacher-v5", max_episode_steps=STEPS),
    "by its own step": partial(gym.make, "Pendulum-v1", max_episode_steps=STEPS),
    "meta-world": reach,
}
OPTIONS = {"meta-world": [{"goal": goal} for goal in (3, 5, 8)]}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def pair(request):
    """Yield two vector environments of three environments each, and the arguments of their resets."""
    fns = [ENVIRONMENTS[request.param]] * 3
    resets = {"seeds": [11, 12, 13], "options": OPTIONS.get(request.param)}
    with VectorEnv(fns, chunk_size=2) as one, VectorEnv(fns, chunk_size=2) as other:
        yield one, other, resets


def actions_of(env, num_chunks, seed=0):
    space = env.action_space
    uniform = np.random.default_rng(seed).uniform(-1, 1, (num_chunks, env.num_envs, 2, *space.shape))
    return (uniform * space.high).astype(space.dtype)


@settings(max_examples=8, deadline=None)
@given(interrupted_at=st.integers(0, STEPS // 2 - 1), started_late=st.integers(0, 3))
def test_an_interrupted_episode_continues_bit_identically(pair, interrupted_at, started_late):
    env, fresh, resets = pair
    chunks = actions_of(env, STEPS // 2)
    env.reset(**resets)
    for chunk in chunks[:started_late]:  # an earlier episode, cut short by the next reset
        env.step(chunk)
    expected_now = env.reset(**resets)
    for chunk in chunks[:interrupted_at]:
        expected_now = env.step(chunk).observation
    replayed = fresh.replay(env.histories())
    assert {k: v.tobytes() for k, v in replayed.items()} == {k: v.tobytes() for k, v in expected_now.items()}
    for chunk in chunks[interrupted_at:]:
        expected, step = env.step(chunk), fresh.step(chunk)
        for key in expected.observation:
            assert step.observation[key].tobytes() == expected.observation[key].tobytes()
        assert step.rewards.tobytes() == expected.rewards.tobytes()
        assert step.truncated.tolist() == expected.truncated.tolist()
    assert expected.truncated.all()


def test_histories_belong_to_the_requested_environments():
    with VectorEnv([ENVIRONMENTS["by its own step"]] * 3, num_workers=2, chunk_size=2) as env:
        env.reset(seeds=[1, 2, 3], options=[None, {"low": 0.1}, None])
        chunks = actions_of(env, 3)
        env.step(chunks[0][[2, 1]], [2, 1])
        env.step(chunks[1][[1]], [1])
        last, first = env.histories([1, 0])
        assert (last.seed, last.options, last.actions.shape) == (2, {"low": 0.1}, (4, 1))
        assert last.actions.tobytes() == np.concatenate([chunks[0][1], chunks[1][1]]).tobytes()
        assert (first.seed, len(first.actions)) == (1, 0)
        swapped = env.replay(env.histories([2, 1]), [0, 2])  # histories of other environments built alike
        expected = env.step(chunks[2][[1, 1]], [1, 2])
        assert expected.observation["state"][0].tobytes() == expected.observation["state"][1].tobytes()
        assert swapped["state"].shape == (2, 3)
        assert [len(each.actions) for each in env.histories()] == [2, 6, 6]


def test_a_finished_episode_or_one_without_a_seed_has_no_history():
    with VectorEnv([ENVIRONMENTS["by its own step"]] * 2, chunk_size=2) as env:
        with pytest.raises(ValueError, match=r"environments \[0, 1\] are finished"):
            env.histories()
        env.reset(seeds=[1, None])
        assert len(env.histories([0])) == 1
        with pytest.raises(ValueError, match="environment 1, seed None: was reset without a seed"):
            env.histories()
        with pytest.raises(ValueError, match="histories: 3 actions must be a multiple of chunk_size=2"):
            env.replay([EpisodeHistory(1, None, np.zeros((3, 1), np.float32))], [0])
        with pytest.raises(EnvError, match="its seed and options do not determine it"):
            env.replay([EpisodeHistory(1, None, np.zeros((STEPS, 1), np.float32))], [0])


@given(st.lists(st.integers(0, 2), max_size=200), st.integers(1, 3))
def test_a_recorder_keeps_episodes_of_any_length(order, chunk_size):
    recorder = EpisodeRecorder("abc", (chunk_size, 2), np.float32)
    recorder.begin(np.arange(3), [0, 1, 2], [None] * 3)
    expected = {row: [] for row in range(3)}
    for number, row in enumerate(order):
        chunk = np.full((1, chunk_size, 2), number, np.float32)
        recorder.stage(np.array([row]), chunk)
        recorder.commit(np.array([row]), np.array([True]))
        expected[row].append(chunk[0])
    for row, chunks in expected.items():
        actions = recorder.history(row).actions
        assert actions.shape == (chunk_size * len(chunks), 2)
        assert not chunks or np.array_equal(actions, np.concatenate(chunks))
