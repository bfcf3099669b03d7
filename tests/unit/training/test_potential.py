"""Shaped rewards change values by the potential, and no choice between actions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from off_policy_runs import OffPolicyRun

from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape, Transitions
from embodyflow.training.off_policy.shaping import Shaping

TOTAL = Shaping("potentials:total")
SMALL = ("rollout.num_steps=100", "policy.hidden_size=16", "off_policy.batch_size=16")


def transitions(
    states: list[float], rewards: list[float], discounts: list[float], following: list[float]
) -> Transitions:
    state, following_state = (torch.tensor(each, dtype=torch.float64)[:, None] for each in (states, following))
    returns, factors = (torch.tensor(each, dtype=torch.float64) for each in (rewards, discounts))
    return Transitions(state, torch.zeros_like(state), returns, factors, following_state)


def test_returns_by_hand() -> None:
    batch = transitions([2.0, 3.0], [1.0, 0.5], [0.9, 0.0], [4.0, 7.0])
    # 1 + 0.9 * 4 - 2 on the way, and 0.5 - 3 where the episode terminates.
    torch.testing.assert_close(TOTAL.shaped(batch).returns, torch.tensor([2.6, -2.5], dtype=torch.float64))
    assert batch.returns.tolist() == [1.0, 0.5]


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.booleans(),
)
def test_an_episode_changes_by_the_potential_of_its_ends(
    steps: list[tuple[float, float]], gamma: float, terminates: bool
) -> None:
    rewards, states = [each[0] for each in steps], [each[1] for each in steps]
    discounts = [gamma] * (len(steps) - 1) + [0.0 if terminates else gamma]
    last = 0.3
    shaped = TOTAL.shaped(transitions(states, rewards, discounts, [*states[1:], last])).returns
    weights = gamma ** np.arange(len(steps))
    expected = (weights * rewards).sum() - states[0] + (0 if terminates else gamma ** len(steps) * last)
    assert (weights * shaped.numpy()).sum() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_returns_over_several_steps_are_the_sum_of_the_shaped_steps(tmp_path: Path, num_steps: int) -> None:
    rng = np.random.default_rng(num_steps)
    length, gamma = 5, 0.9
    states = rng.normal(size=(length + 1, 1)).astype(np.float32)
    rewards = rng.normal(size=length).astype(np.float32)
    flags = np.zeros(length, bool)
    buffer = ReplayBuffer.create(tmp_path, Shape(1, 1, 1), 100)
    columns = {"state": states[:-1], "action": np.zeros((length, 1), np.float32), "reward": rewards}
    ends = {"terminated": flags | (np.arange(length) == length - 1), "truncated": flags}
    buffer.append({**columns, "next_state": states[1:], **ends})
    drawn = TOTAL.shaped(buffer.sample(np.random.default_rng(0), 40, num_steps, gamma))
    potentials = np.append(states[:-1, 0], 0.0)  # that of the last state counts as 0
    shaped = rewards + gamma * potentials[1:] - potentials[:-1]
    for state, result in zip(drawn.state[:, 0].tolist(), drawn.returns.tolist(), strict=True):
        first = int(np.flatnonzero(states[:-1, 0] == np.float32(state))[0])
        taken = shaped[first : first + num_steps]
        assert result == pytest.approx((gamma ** np.arange(len(taken)) * taken).sum(), abs=1e-5)


@given(st.integers(0, 2**31))
def test_values_of_actions_change_by_the_potential_of_their_state(seed: int) -> None:
    rng = np.random.default_rng(seed)
    following, rewards = rng.integers(4, size=8), rng.normal(size=8)  # of two actions in each of four states
    potentials, discounts = rng.normal(size=4), np.where(rng.random(8) < 0.2, 0.0, 0.8)
    states = potentials[np.arange(8) // 2]
    shaped = TOTAL.shaped(transitions(list(states), list(rewards), list(discounts), list(potentials[following])))
    plain, other = (_values(following, discounts, each) for each in (rewards, shaped.returns.numpy()))
    np.testing.assert_allclose(other, plain - states, atol=1e-9)


def _values(following: np.ndarray, discounts: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """Return the values of the best policy's actions, by value iteration."""
    values = np.zeros(8)
    for _ in range(150):
        values = rewards + discounts * values.reshape(4, 2).max(1)[following]
    return values


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pairs", r"^off_policy.potential=potentials:pairs: gave \(2, 1\) for states of shape \(2, 1\); allowed is"),
        ("infinite", r"^off_policy.potential=potentials:infinite: gave NaN or inf"),
    ],
)
def test_a_wrong_potential_is_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shaping(f"potentials:{name}").shaped(transitions([2.0, 3.0], [1.0, 0.5], [0.9, 0.0], [4.0, 7.0]))


def test_a_run_learns_from_shaped_rewards_and_keeps_those_of_the_environment(tmp_path: Path) -> None:
    ends = {}
    for name in (None, "nothing", "total"):
        words = [] if name is None else [f"off_policy.potential=potentials:{name}"]
        run = OffPolicyRun(tmp_path / str(name), [*SMALL, *words])
        run.iterate(range(1, 2))  # whose transitions precede all updates
        ends[name] = run.trainer.fingerprint(), run.files()
        run.close()
    assert ends["nothing"] == ends[None]
    assert ends["total"][0] != ends[None][0] and ends["total"][1] == ends[None][1] != {}
