"""Tests of control rollouts, whose pieces of episodes are compared step by step with Gymnasium."""

import os

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError, DamageError
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.seeding import derive_seed

WORDS = ["experiment=reacher", "algorithm=ppo", "rollout.envs_per_worker=2", "rollout.num_steps=30", "env.max_steps=20"]


def fresh(config, rank=0):
    torch.manual_seed(0)
    return ControlRollout(config, rank, 2)


def collected(config, rank, num_iterations=2):
    """Return the rows and finished episodes of iterations 1 to ``num_iterations`` of a fresh engine."""
    engine = fresh(config, rank)
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


def test_an_episode_continues_across_iterations(played):
    """Check that 30 steps with episodes of 20 give pieces of 20 and 10, then 10 and 20."""
    (first, ended), (second, ended_then) = played
    assert first["num_steps"].tolist() == [20, 20, 10, 10]
    assert second["num_steps"].tolist() == [10, 10, 20, 20]
    assert first["loss_mask"].sum(1)[:, 0].tolist() == first["num_steps"].tolist()
    assert ended.lengths == [20, 20]
    assert ended_then.lengths == [20, 20, 20, 20]
    assert not first["terminated"].any()
    assert np.array_equal(second["state"][:2, 0], first["final_state"][2:])


def test_the_uid_of_a_row_counts_its_first_step(config, played):
    assert played[0][0]["uid"].tolist() == [120, 150, 140, 170]  # 120 steps per iteration, 30 per environment
    assert collected(config, 1, 1)[0][0]["uid"].tolist() == [180, 210, 200, 230]


def test_rows_match_gymnasium(played):
    """Check that environment 1's recorded actions, clipped, lead to its recorded states and rewards."""
    (first, ended), (second, ended_then) = played
    env = gym.make("Reacher-v5", max_episode_steps=20)
    pieces = [(first, 1), (first, 3), (second, 1), (second, 3)]
    steps = [(rows, row, t) for rows, row in pieces for t in range(rows["num_steps"][row])]
    returns, truncated = [0.0], True
    for rows, row, t in steps:
        if truncated:
            state, _ = env.reset(seed=derive_seed(0, "episode", 1, len(returns) - 1) % 2**31)
        assert np.array_equal(rows["state"][row, t], state.astype(np.float32))
        action = np.clip(rows["action_tokens"][row, t], -1, 1)
        state, reward, _, truncated, _ = env.step(action)
        assert rows["rewards"][row, t, 0] == np.float32(reward)
        returns[-1] += reward
        if truncated:
            returns.append(0.0)
    finished = [ended.returns[1], ended_then.returns[1], ended_then.returns[3]]
    assert finished == pytest.approx(returns[:3])


def test_running_returns_are_discounted_sums_since_the_episode_began(config, played):
    """Episodes of 20 steps: the first ends within an iteration, the next spans two."""
    scaled = compose_config([*WORDS, "policy.normalize_returns=true"])
    (first, _), (second, _) = collected(scaled, 0)
    pieces = [(first, 1), (first, 3), (second, 1), (second, 3)]
    running, since = 0.0, 0
    for rows, row in pieces:
        for t in range(rows["num_steps"][row]):
            running, since = config.algorithm.gamma * running + rows["rewards"][row, t, 0], since + 1
            assert rows["running_returns"][row, t] == pytest.approx(running, rel=1e-5)
            if since == 20:
                running, since = 0.0, 0
    # All other columns are those of a policy that does not scale rewards.
    for rows, (plain, _) in zip((first, second), played, strict=True):
        assert "running_returns" not in plain
        assert all(np.array_equal(rows[name], plain[name]) for name in plain)


class OldPendulum(PendulumEnv):
    """An environment with NumPy's older generator, which accepts seeds of 32 bits."""

    def reset(self, *, seed=None, options=None):
        self.state = np.random.RandomState(seed).uniform(-1, 1, 2)
        self.last_u = None
        return self._get_obs(), {}


gym.register("tests/OldPendulum-v0", OldPendulum)


def test_seeds_fit_into_32_bits():
    words = [f"env.id={__name__}:tests/OldPendulum-v0", "policy.state_dim=3", "policy.action_dim=1"]
    [(rows, ended)] = collected(compose_config([*WORDS, *words]), 0, 1)
    assert ended.lengths == [20, 20]
    assert len(np.unique(rows["state"][:, 0], axis=0)) == 4  # each episode starts in a different state


def test_a_fresh_engine_collects_the_same(config, played):
    again, _ = collected(config, 0, 1)[0]
    assert all(np.array_equal(again[name], played[0][0][name]) for name in again)


@pytest.mark.parametrize("scales_rewards", [False, True])
def test_another_worker_continues_bit_identically(scales_rewards, tmp_path):
    """Check that iteration 3 and its open episodes are equal, whichever worker ran the iterations before."""
    config = compose_config([*WORDS, f"policy.normalize_returns={str(scales_rewards).lower()}"])
    draws = [(0, iteration, "rollout") for iteration in range(4)]
    first, second = (fresh(config) for _ in range(2))
    try:
        played = [first.collect(i, draws[i], tmp_path) for i in (1, 2, 3)]
        left_open = (tmp_path / "iteration-000003.0.rows").read_bytes()
        for engine in (second, first):  # a fresh worker, and one that has already run iteration 3
            rows, ended = engine.collect(3, draws[3], tmp_path)
            assert digest_of(rows) == digest_of(played[2][0]) and ended == played[2][1]
            assert (tmp_path / "iteration-000003.0.rows").read_bytes() == left_open
        rows, _ = first.collect(1, draws[1], tmp_path)
        assert digest_of(rows) == digest_of(played[0][0])
    finally:
        first.close(), second.close()


def test_open_episodes_are_kept_as_long_as_checkpoints_are(config, tmp_path):
    engine = fresh(config)
    try:
        for iteration in range(1, 7):
            engine.collect(iteration, (0, iteration, "rollout"), tmp_path)
    finally:
        engine.close()
    kept = sorted(int(path.name[10:16]) for path in tmp_path.iterdir())
    assert config.trainer.keep_checkpoints == 2 and kept == [3, 4, 5, 6]  # 3 and 4 are the checkpoints during 6


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_open_episodes_are_an_error(damage, config, tmp_path):
    first, second = (fresh(config) for _ in range(2))
    try:
        first.collect(1, (0, 1, "rollout"), tmp_path)
        path = tmp_path / "iteration-000001.0.rows"
        path.unlink() if damage == "missing" else os.truncate(path, 100)
        with pytest.raises(DamageError, match=r"iteration-000001\.0\.rows: must hold the open episodes of iteration 1"):
            second.collect(2, (0, 2, "rollout"), tmp_path)
    finally:
        first.close(), second.close()


def test_a_terminated_episode_is_marked():
    words = ["env.id=Hopper-v5", "policy.state_dim=11", "policy.action_dim=3", "env.max_steps=1000"]
    rows, ended = collected(compose_config([*WORDS, *words, "rollout.num_steps=60"]), 0, 1)[0]
    assert rows["terminated"].sum() == len(ended.lengths) > 0
    assert sorted(rows["num_steps"][rows["terminated"]].tolist()) == sorted(ended.lengths)


class Wide(gym.Env):
    """An environment that observes three numbers although its space declares two."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3), {}

    def step(self, action):
        return np.zeros(3), 0.0, False, False, {}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_user_defined_environment_is_stepped_before_the_run():
    gym.register("tests/WideBounds-v0", Wide, disable_env_checker=True)
    own = [f"env.id={__name__}:tests/WideBounds-v0", "policy.state_dim=2", "policy.action_dim=2"]
    with pytest.raises(ConfigError, match=r"its observation 'state' must be float64 \(2,\) .*, is float64 \(3,\)"):
        compose_config([*WORDS, *own])


def test_open_episodes_of_an_earlier_version_have_no_lengths(config, played, tmp_path):
    engine = fresh(config)
    engine.collect(1, (0, 1, "rollout"), tmp_path)
    engine.close()
    path = tmp_path / "iteration-000001.0.rows"
    [table] = Journal(path).read()
    assert np.asarray(table["lengths"]).tolist() == [10, 10]
    path.unlink()
    Journal(path).append({name: column for name, column in table.items() if name != "lengths"})
    other = fresh(config)
    rows, ended = other.collect(2, (0, 2, "rollout"), tmp_path)
    other.close()
    assert digest_of(rows) == digest_of(played[1][0]) and ended == played[1][1]
