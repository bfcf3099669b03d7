"""Steps of control tasks: pieces of episodes, played again step by step in Gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from embodyflow.compose import compose_config
from embodyflow.engines.control_rollout import ControlRollout
from embodyflow.seeding import derive_seed

WORDS = ["experiment=reacher", "flow=ppo", "rollout.envs_per_worker=2", "rollout.num_steps=30", "env.max_steps=20"]


def collected(config, rank, num_iterations=2):
    """Return the rows of iterations 1 and on of a fresh engine, and what ended in them."""
    torch.manual_seed(0)
    engine = ControlRollout(config, rank, 2)
    try:
        return [engine.collect(i, (0, i, "rollout")) for i in range(1, num_iterations + 1)]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def config():
    return compose_config(WORDS)


@pytest.fixture(scope="module")
def played(config):
    return collected(config, 0)


def test_an_episode_goes_on_over_iterations(played):
    """30 steps of 2 environments in episodes of 20: pieces of 20 and 10, then 10 and 20."""
    (first, ended), (second, ended_then) = played
    assert first["num_steps"].tolist() == [20, 20, 10, 10]
    assert second["num_steps"].tolist() == [10, 10, 20, 20]
    assert first["loss_mask"].sum(1)[:, 0].tolist() == first["num_steps"].tolist()
    assert ended.lengths == [20, 20]
    assert ended_then.lengths == [20, 20, 20, 20]
    assert not first["terminated"].any()
    assert np.array_equal(second["state"][:2, 0], first["final_state"][2:])


def test_uids_are_those_of_the_first_steps(config, played):
    assert played[0][0]["uid"].tolist() == [120, 150, 140, 170]  # 120 steps an iteration, 30 of each environment
    assert collected(config, 1, 1)[0][0]["uid"].tolist() == [180, 210, 200, 230]


def test_gymnasium_plays_the_same(played):
    """Environment 1: the clipped actions that were recorded lead through the recorded states and rewards."""
    (first, ended), (second, ended_then) = played
    env = gym.make("Reacher-v5", max_episode_steps=20)
    pieces = [(first, 1), (first, 3), (second, 1), (second, 3)]
    steps = [(rows, row, t) for rows, row in pieces for t in range(rows["num_steps"][row])]
    returns, truncated = [0.0], True
    for rows, row, t in steps:
        if truncated:
            state, _ = env.reset(seed=derive_seed(0, "episode", 1, len(returns) - 1))
        assert np.array_equal(rows["state"][row, t], state.astype(np.float32))
        action = np.clip(rows["action_tokens"][row, t], -1, 1)
        state, reward, _, truncated, _ = env.step(action)
        assert rows["rewards"][row, t, 0] == np.float32(reward)
        returns[-1] += reward
        if truncated:
            returns.append(0.0)
    finished = [ended.returns[1], ended_then.returns[1], ended_then.returns[3]]
    assert finished == pytest.approx(returns[:3])


def test_a_fresh_engine_collects_the_same(config, played):
    again, _ = collected(config, 0, 1)[0]
    assert all(np.array_equal(again[name], played[0][0][name]) for name in again)


def test_an_episode_that_terminates_says_so():
    words = ["env.id=Hopper-v5", "policy.state_dim=11", "policy.action_dim=3", "env.max_steps=1000"]
    rows, ended = collected(compose_config([*WORDS, *words, "rollout.num_steps=60"]), 0, 1)[0]
    assert rows["terminated"].sum() == len(ended.lengths) > 0
    assert sorted(rows["num_steps"][rows["terminated"]].tolist()) == sorted(ended.lengths)
