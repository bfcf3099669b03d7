"""The ledger opens after a kill or a power failure at any byte, and refuses all other damage."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embodyflow.errors import DamageError
from embodyflow.record.ledger import Ledger


def filled(path: Path, count: int = 3) -> Ledger:
    ledger = Ledger(path)
    for iteration in range(count):
        ledger.append("commit", iteration, {"weights_digest": f"{iteration:x}" * 8})
    return ledger


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger.jsonl")
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.entries == ledger.entries and again.digest() == ledger.digest()
    assert again.newest("commit", 1) == ledger.entries[1].facts
    assert again.newest("stage", 1) is None and again.newest("commit", 1, "rollout") is None
    again.append("commit", 1, {"weights_digest": "other"})
    assert again.newest("commit", 1) == {"weights_digest": "other"}


def test_wherever_writing_stops_only_the_last_line_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    whole = filled(path)
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(content)):
        path.write_bytes(content[:end])
        cut = Ledger(path)
        assert cut.entries == whole.entries[:2]
        cut.append("commit", 2, whole.entries[2].facts)
        assert path.read_bytes() == content


def test_a_line_that_did_not_fit_on_the_disk_is_cut_off_before_the_next(tmp_path: Path, monkeypatch) -> None:
    ledger = filled(tmp_path / "ledger.jsonl", count=1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(os, "fsync", full)
        ledger.append("commit", 1, {"weights_digest": "refused"})
    ledger.append("commit", 1, {"weights_digest": "written"})
    assert Ledger(tmp_path / "ledger.jsonl").entries == ledger.entries and len(ledger.entries) == 2


def test_an_end_of_line_overwritten_with_zero_is_damage(tmp_path: Path) -> None:
    """A power failure may leave zeros in the last line only, and here another line follows."""
    filled(path := tmp_path / "ledger.jsonl")
    for number in (1, 2):
        content = path.read_bytes().splitlines()
        path.with_name("copy").write_bytes(b"\n".join(content[:number]) + b"\0" + b"\n".join(content[number:]) + b"\n")
        with pytest.raises(DamageError, match=f"line {number} is damaged"):
            Ledger(path.with_name("copy"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_always_noticed(tmp_path: Path, place: int, value: int) -> None:
    path = tmp_path / "ledger.jsonl"
    path.unlink(missing_ok=True)
    entries = filled(path).entries
    content = bytearray(path.read_bytes())
    place %= len(content)
    unchanged = content[place] == value
    content[place] = value
    path.write_bytes(content)
    number = content[:place].count(b"\n") + 1
    torn = number == 3 and (place == len(content) - 1 or value == 0)  # as a power failure may leave the last line
    try:
        assert Ledger(path).entries == (entries if unchanged else entries[:2])
        assert unchanged or torn
    except DamageError as error:
        assert not unchanged and f"line {number} is damaged" in str(error)


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 2, 1), (0, 0, 1, 2)])
def test_lines_dropped_doubled_or_moved_are_damage(tmp_path: Path, order: tuple[int, ...]) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(DamageError, match="is damaged"):
        Ledger(path)


def test_the_digest_depends_on_the_newest_facts_only(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "one"), Ledger(tmp_path / "other")
    one.append("stage", 1, {"node_id": "a"})
    one.append("stage", 1, {"node_id": "b"})
    other.append("stage", 1, {"node_id": "b"})
    other.append("stage", 1, {"node_id": "a"})
    other.append("stage", 1, {"node_id": "a"})
    assert one.digest() == other.digest()
    other.append("commit", 1, {})
    assert one.digest() != other.digest()


def test_the_values_of_roll_backs_hold_after_the_commits_that_they_returned_to(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.values_after(9) == {}
    ledger.append("roll_back", 10, {"detector": "spike", "to": 8, "values": {"trainer.learning_rate": 0.5, "seed": 1}})
    assert [ledger.values_after(each) for each in (7, 8)] == [{}, {"trainer.learning_rate": 0.5, "seed": 1}]
    ledger.append("roll_back", 9, {"detector": "spike", "to": 4, "values": {"trainer.learning_rate": 0.25}})
    assert [ledger.values_after(each) for each in (3, 4)] == [{}, {"trainer.learning_rate": 0.25, "seed": 1}]


def test_a_roll_back_makes_later_lines_void_until_its_commit_is_there_again(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger.jsonl", count=4)
    commits = [entry.facts for entry in ledger.entries]
    ledger.append("stage", 4, {"node_id": "rollout"})
    ledger.append("alarm", 3, {"detector": "spike"})
    ledger.append("evaluation", 1, {"weights_digest": "1"})
    ledger.append("workers", 3, {"number": 2})
    assert ledger.alarms(3) == {3: [{"detector": "spike"}]} and ledger.newest("alarm", 3, "spike") is not None
    ledger.append("roll_back", 3, {"detector": "spike", "to": 1, "values": {"trainer.learning_rate": 0.5}})
    for each in (ledger, Ledger(tmp_path / "ledger.jsonl")):
        assert [each.newest("commit", index) for index in range(4)] == [commits[0], None, None, None]
        assert each.newest("evaluation", 1) is not None and each.newest("stage", 4, "rollout") is None
        assert each.newest("workers", 3) == {"number": 2}, "rows of the iteration may be kept, shared by two"
        assert each.alarms(3) == {} and [line.facts["to"] for line in each.roll_backs()] == [1]
    ledger.append("commit", 1, commits[1])
    assert ledger.newest("commit", 1) == commits[1]
    ledger.append("roll_back", 1, {"detector": "spike", "to": 0, "values": {}})
    assert [line.facts["to"] for line in ledger.roll_backs()] == [1, 0] and ledger.newest("commit", 1) is None


def test_the_digest_leaves_out_what_depends_on_time(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger.jsonl")
    before = ledger.digest()
    ledger.append("alarm", 2, {"detector": "throughput_drop", "timed": True, "value": 12.3})
    assert ledger.digest() == before
    ledger.append("alarm", 2, {"detector": "spike", "timed": False, "value": 12.3})
    assert ledger.digest() != before
