"""The replay buffer: what is drawn, what is on disk, and what a commit brings back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodyflow.errors import DamageError
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape, draw

SHAPE = Shape(num_envs=2, state_dim=3, action_dim=1)


def columns(first: int, last: int, ended: tuple[int, ...] = (), truncated: tuple[int, ...] = ()) -> dict[str, Any]:
    """Transitions whose state, action and reward are their number, with the number of the next as next state."""
    numbers = np.arange(first, last, dtype=np.float32)
    return {
        "state": np.repeat(numbers[:, None], 3, 1),
        "action": numbers[:, None],
        "reward": numbers,
        "next_state": np.repeat(numbers[:, None] + SHAPE.num_envs, 3, 1),
        "terminated": np.isin(numbers, ended),
        "truncated": np.isin(numbers, truncated),
    }


def new_buffer(folder: Path, capacity: int = 100, size: int = 8) -> ReplayBuffer:
    return ReplayBuffer.create(folder / "replay", SHAPE, capacity, segment_size=size)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "replay").glob("*.transitions"))}


def by_start(buffer: ReplayBuffer, num_steps: int, gamma: float = 0.5) -> dict[int, tuple[float, float, float]]:
    """Return, of every transition, its return, the discount after it and its next state, by number."""
    batch = buffer.sample(derive_rng(0), 400, num_steps, gamma)
    facts = zip(batch.action[:, 0], batch.returns, batch.discounts, batch.next_state[:, 0], strict=True)
    return {int(start): (float(value), float(rate), float(after)) for start, value, rate, after in facts}


def test_every_transition_is_drawn_as_it_was_appended(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 6))
    buffer.append(columns(6, 20, ended=(9,)))  # over three files
    assert by_start(buffer, 1) == {n: (n, 0.0 if n == 9 else 0.5, n + 2) for n in range(20)}
    assert len(files(tmp_path)) == 3


def test_returns_over_steps_follow_one_environment_and_end_with_its_episode(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 20, ended=(8,), truncated=(9,)))
    drawn = by_start(buffer, 3)
    assert drawn[0] == (0 + 0.5 * 2 + 0.25 * 4, 0.125, 6.0)
    assert drawn[6] == (6 + 0.5 * 8, 0.0, 10.0), "terminated after two steps: there is nothing to add"
    assert drawn[7] == (7 + 0.5 * 9, 0.25, 11.0), "cut by a time limit after two steps: the value goes on"
    assert drawn[10] == (10 + 0.5 * 12 + 0.25 * 14, 0.125, 16.0)
    assert drawn[17] == (17 + 0.5 * 19, 0.25, 21.0), "the newest steps are not followed yet"


def test_only_the_newest_transitions_are_drawn(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path, capacity=10)
    buffer.append(columns(0, 24))
    assert by_start(buffer, 1).keys() == set(range(14, 24))


def test_a_draw_depends_on_its_seed_alone(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 20))
    first, again, other = (buffer.sample(derive_rng(0, 1, name), 8, 1, 0.9).action for name in ("a", "a", "b"))
    assert first.equal(again) and not first.equal(other)


def test_half_of_a_batch_are_demonstrations(tmp_path: Path) -> None:
    expert = new_buffer(tmp_path / "expert")
    expert.append(columns(1000, 1016))
    expert.commit()
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 20))
    before = files(tmp_path / "expert")
    demonstrations = ReplayBuffer.demonstrations(tmp_path / "expert" / "replay", Shape(1, 3, 1))
    actions = draw(buffer, demonstrations, derive_rng(0), 9, 1, 0.5).action[:, 0]
    assert (actions < 1000).tolist() == [True] * 5 + [False] * 4
    assert files(tmp_path / "expert") == before
    with pytest.raises(DamageError, match="has transitions of sizes"):
        ReplayBuffer.demonstrations(tmp_path / "expert" / "replay", Shape(1, 4, 1))


def test_what_a_commit_does_not_know_is_cut(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 12))
    state, committed = json.loads(json.dumps(buffer.commit())), files(tmp_path)
    buffer.append(columns(100, 130))
    again = ReplayBuffer.open(tmp_path / "replay", SHAPE, 100, state)
    assert files(tmp_path) == committed and len(again) == 12
    again.append(columns(12, 30))
    undisturbed = new_buffer(tmp_path / "undisturbed")
    undisturbed.append(columns(0, 30))
    assert files(tmp_path) == files(tmp_path / "undisturbed")
    assert again.commit() == undisturbed.commit()
    first, second = (each.sample(derive_rng(3), 50, 2, 0.9).tensors for each in (again, undisturbed))
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))


def test_a_new_run_removes_what_an_attempt_without_a_commit_left(tmp_path: Path) -> None:
    new_buffer(tmp_path).append(columns(0, 12))
    assert len(new_buffer(tmp_path)) == 0 and files(tmp_path) == {}


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_file_that_is_missing_or_too_short_is_named(tmp_path: Path, spoil: Any) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 12))
    state = buffer.commit()
    spoil(tmp_path / "replay" / "000001.transitions")
    with pytest.raises(DamageError, match=r"000001.transitions is missing or too short"):
        ReplayBuffer.open(tmp_path / "replay", SHAPE, 100, state)


def test_a_changed_bit_is_found(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path)
    buffer.append(columns(0, 12))
    state, path = buffer.commit(), tmp_path / "replay" / "000000.transitions"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamageError, match=r"000000.transitions is damaged"):
        ReplayBuffer.open(tmp_path / "replay", SHAPE, 100, state)


def test_files_that_no_commit_needs_are_removed(tmp_path: Path) -> None:
    buffer = new_buffer(tmp_path, capacity=10)
    buffer.append(columns(0, 20))
    earlier, oldest = buffer.commit(), buffer.oldest
    buffer.append(columns(20, 40))
    later = buffer.commit()
    buffer.drop_before(oldest)
    assert files(tmp_path).keys() == {f"00000{n}.transitions" for n in (1, 2, 3, 4)}
    assert by_start(buffer, 1).keys() == set(range(30, 40))
    reopened = ReplayBuffer.open(tmp_path / "replay", SHAPE, 10, later)
    assert len(reopened) == 40 and by_start(reopened, 1) == by_start(buffer, 1)
    back = ReplayBuffer.open(tmp_path / "replay", SHAPE, 10, earlier)
    assert len(back) == 20 and by_start(back, 1).keys() == set(range(10, 20))


def test_memory_does_not_grow_with_the_transitions(tmp_path: Path) -> None:
    """Pages of mapped files are the system's cache; what counts is the process's own memory."""
    buffer = ReplayBuffer.create(tmp_path / "replay", SHAPE, 10**6)
    part = columns(0, 5000)

    def anonymous_kb() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    buffer.append(part)
    buffer.sample(derive_rng(0), 256, 1, 0.9)
    before = anonymous_kb()
    for number in range(40):  # 200 000 transitions of 34 bytes
        buffer.append(part)
        buffer.sample(derive_rng(number), 256, 1, 0.9)
    assert anonymous_kb() - before < 2000


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
@pytest.mark.parametrize("name", ["state", "action", "reward", "next_state"])
def test_a_number_that_float32_cannot_hold_is_refused(name: str, value: float, tmp_path: Path) -> None:
    buffer, wrong = new_buffer(tmp_path), columns(0, 4)
    wrong[name] = wrong[name].astype(np.float64)
    wrong[name].flat[-1] = value
    with pytest.raises(ValueError, match=f"the column {name} has NaN, inf or a number that float32 cannot hold"):
        buffer.append(wrong)
    assert len(buffer) == 0 and not files(tmp_path)
