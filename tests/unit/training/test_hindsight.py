"""Hindsight experience replay: which goals, rewards and ends a batch has, and that a run repeats bit for bit."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from goal_runs import HINDSIGHT, REACHING
from hypothesis import given, settings
from hypothesis import strategies as st
from off_policy_runs import OffPolicyRun

from embodyflow.config.robots.hindsight import HindsightConfig
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.replay import hindsight
from embodyflow.training.off_policy.replay.hindsight import EpisodeEnds, HindsightReplay
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape, Transitions

SHAPE = Shape(num_envs=2, state_dim=3, action_dim=1)
NUMBER, ACHIEVED, DESIRED = 0, 1, 2
"""Places in a state: the transition's number, the achieved and the desired goal."""


class Numbers:
    """Goals are numbers. Achieving what is desired has the reward 0 and ends the episode, if ``ends``."""

    achieved, desired = slice(ACHIEVED, ACHIEVED + 1), slice(DESIRED, DESIRED + 1)

    def __init__(self, ends: bool = False) -> None:
        self._ends = ends

    def rewards(self, achieved: Any, desired: Any) -> Any:
        return -(achieved[:, 0] != desired[:, 0]).astype(np.float32)

    def terminated(self, achieved: Any, desired: Any, rewards: Any) -> Any:
        return (rewards == 0) & self._ends


def columns(first: int, last: int, terminated: tuple[int, ...] = (), truncated: tuple[int, ...] = ()) -> dict[str, Any]:
    """Transitions n with the reward -7 and the desired goal -1, after which 100 + n is achieved."""
    numbers = np.arange(first, last, dtype=np.float32)
    before = np.stack([numbers, 100 + numbers - SHAPE.num_envs, np.full_like(numbers, -1)], 1)
    return {
        "state": before,
        "action": numbers[:, None],
        "reward": np.full_like(numbers, -7),
        "next_state": before + np.array([SHAPE.num_envs, SHAPE.num_envs, 0]),
        "terminated": np.isin(numbers, terminated),
        "truncated": np.isin(numbers, truncated),
    }


def new_buffer(folder: Path, capacity: int = 100) -> ReplayBuffer:
    return ReplayBuffer.create(folder / "replay", SHAPE, capacity, segment_size=8)


def numbers_of(batch: Transitions) -> list[int]:
    return batch.action[:, 0].int().tolist()


def goals_of(batch: Transitions, num_relabelled: int) -> dict[int, set[int]]:
    """Return, of each relabelled transition, the transitions whose achieved goals it got."""
    goals: dict[int, set[int]] = {}
    for number, state, after in zip(numbers_of(batch), batch.state, batch.next_state, strict=True):
        assert state[DESIRED] == after[DESIRED], "both states have the same goal"
        if num_relabelled > 0:
            goals.setdefault(number, set()).add(int(state[DESIRED]) - 100)
        else:
            assert state[DESIRED] == -1
        num_relabelled -= 1
    return goals


def test_goals_are_those_of_the_same_episode_from_the_same_step_on(tmp_path: Path) -> None:
    """Of environment 0 the transitions 0, 2, 4 and 6, 8, 10 are episodes, and 12 begins one; of 1 none has ended."""
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 14, terminated=(4,), truncated=(10,)))
    batch = HindsightReplay(buffer, Numbers(), HindsightConfig(ratio=4)).sample(derive_rng(0), 1000, 0.5)
    assert goals_of(batch, 800) == {
        **{0: {0, 2, 4}, 2: {2, 4}, 4: {4}, 6: {6, 8, 10}, 8: {8, 10}, 10: {10}, 12: {12}},
        **{n: set(range(n, 14, 2)) for n in range(1, 14, 2)},
    }
    final = HindsightReplay(buffer, Numbers(), HindsightConfig(strategy="final")).sample(derive_rng(0), 1000, 0.5)
    assert goals_of(final, 800) == {0: {4}, 2: {4}, 4: {4}, 6: {10}, 8: {10}, 10: {10}, 12: {12}} | {
        n: {13} for n in range(1, 14, 2)
    }


@pytest.mark.parametrize("ends", [False, True])
def test_rewards_and_ends_are_those_of_the_new_goals(tmp_path: Path, ends: bool) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 14, terminated=(4,), truncated=(10,)))
    batch = HindsightReplay(buffer, Numbers(ends), HindsightConfig()).sample(derive_rng(0), 500, 0.5)
    for k, number in enumerate(numbers_of(batch)):
        reached = batch.state[k, DESIRED] == 100 + number
        if k < 400:
            assert batch.returns[k] == (0.0 if reached else -1.0)
            assert batch.discounts[k] == (0.0 if number == 4 or (ends and reached) else 0.5)
        else:
            assert (batch.returns[k], batch.discounts[k]) == (-7.0, 0.0 if number == 4 else 0.5)
        others = [NUMBER, ACHIEVED]
        assert batch.state[k, others].tolist() == [number, 98 + number], "what was achieved stays"
        assert batch.next_state[k, others].tolist() == [number + 2, 100 + number]
    assert {bool(batch.state[k, DESIRED] == 100 + numbers_of(batch)[k]) for k in range(400)} == {True, False}


def test_later_goals_of_an_episode_are_equally_likely(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 8, truncated=(6, 7)))
    batch = HindsightReplay(buffer, Numbers(), HindsightConfig()).sample(derive_rng(0), 20_000, 0.5)
    chosen = Counter((n, int(g) - 100) for n, g in zip(numbers_of(batch)[:16_000], batch.state[:, DESIRED]))  # noqa: B905
    shares = {goal: chosen[2, goal] / sum(chosen[2, other] for other in (2, 4, 6)) for goal in (2, 4, 6)}
    assert shares == pytest.approx(dict.fromkeys((2, 4, 6), 1 / 3), abs=0.04)


@given(
    ends=st.lists(st.sampled_from(["terminated", "truncated", ""]), min_size=3, max_size=40),
    parts=st.integers(1, 4),
    capacity=st.integers(2, 60),
    ratio=st.integers(1, 8),
    size=st.integers(2, 40),
    strategy=st.sampled_from(["future", "final"]),
)
@settings(max_examples=60, deadline=None)
def test_a_goal_is_one_that_the_episode_achieves_in_the_same_or_a_later_step(
    ends: list[str], parts: int, capacity: int, ratio: int, size: int, strategy: Any
) -> None:
    ends = ends[: len(ends) // 2 * 2] or ["", ""]
    flags = {kind: tuple(n for n, end in enumerate(ends) if end == kind) for kind in ("terminated", "truncated")}
    with TemporaryDirectory() as folder:
        buffer = new_buffer(Path(folder), capacity)
        replay = HindsightReplay(buffer, Numbers(), HindsightConfig(ratio=ratio, strategy=strategy))
        stored = 0
        for part in np.array_split(np.arange(len(ends) // 2), parts):
            if not len(part):
                continue
            stored += 2 * len(part)
            buffer.append(columns(2 * part[0], 2 * part[-1] + 2, **flags))
            buffer.drop_before(buffer.oldest)
            batch = replay.sample(derive_rng(stored), size, 0.9)
            num_relabelled = int((batch.state[:, DESIRED] != -1).sum())
            assert num_relabelled == size * ratio // (ratio + 1)
            assert size / (ratio + 1) <= size - num_relabelled < size / (ratio + 1) + 1
            for number, goals in goals_of(batch, num_relabelled).items():
                later = [number]
                while not ends[later[-1]] and later[-1] + 2 < stored:
                    later.append(later[-1] + 2)
                assert buffer.oldest <= number and goals <= ({*later} if strategy == "future" else {later[-1]})


def test_ends_are_the_same_in_a_buffer_that_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindsight, "SEGMENT_SIZE", 4)  # several pieces
    buffer = new_buffer(tmp_path, capacity=20)
    ends = EpisodeEnds(buffer)
    for first in range(0, 40, 10):
        buffer.append(columns(first, first + 10, terminated=(8, 9, 20, 33), truncated=(26,)))
        last = ends.last(np.arange(buffer.oldest, len(buffer)))
    reopened = EpisodeEnds(ReplayBuffer.open(tmp_path / "replay", SHAPE, 20, buffer.commit()))
    assert reopened.last(np.arange(20, 40)).tolist() == last.tolist()
    assert last[[0, 1, 6, 8, 13, 14, 15, 19]].tolist() == [20, 33, 26, 38, 33, 38, 39, 39]
    assert len(ends._keys) == 3, "those before the oldest transition are forgotten"


def end(run: OffPolicyRun) -> Any:
    return run.trainer.fingerprint(), run.files()


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path / "whole", HINDSIGHT)
    run.iterate(range(1, 7))
    run.close()
    killed = OffPolicyRun(tmp_path / "killed", HINDSIGHT)
    killed.iterate(range(1, 4))
    killed.gather(4)
    killed.train(4)  # not committed
    killed.close()
    again = OffPolicyRun(tmp_path / "killed", HINDSIGHT, last=3)
    again.iterate(range(4, 7))
    again.close()
    assert end(again) == end(run)


def test_the_buffer_keeps_what_the_environment_did(tmp_path: Path) -> None:
    ends = {}
    for name, words in {"relabelled": HINDSIGHT, "plain": REACHING}.items():
        run = OffPolicyRun(tmp_path / name, words)
        run.iterate(range(1, 3))  # the second gathers before the first update
        ends[name] = end(run)
        run.close()
    (relabelled, stored), (plain, files) = ends["relabelled"], ends["plain"]
    assert stored == files != {} and relabelled != plain


def test_batches_of_a_run_have_the_rewards_of_the_environment(tmp_path: Path) -> None:
    run = OffPolicyRun(tmp_path, [*HINDSIGHT, "off_policy.batch_size=100"])
    run.iterate(range(1, 4))
    drawn = run.trainer._draw(derive_rng(1), 100, 1, 0.9)
    distances = torch.linalg.norm(drawn.next_state[:, 2:4] - drawn.next_state[:, 4:6], dim=1)
    assert drawn.returns.tolist() == (-(distances > 0.1).float()).tolist()
    assert (drawn.returns[:80] == 0).float().mean() > 0.2, "as many goals are those of the same step"
    assert drawn.state[:, 4:6].equal(drawn.next_state[:, 4:6])
    assert (drawn.discounts == 0.9).all()
    run.close()
