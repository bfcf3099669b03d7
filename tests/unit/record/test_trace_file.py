"""The joined trace: clocks, arrows, and processes that were killed."""

import json
from pathlib import Path
from typing import Any

import pytest
from traces import Trace, checked_trace

from embodyflow.record.trace_file import write_trace

HERE, THERE = "boot of this machine", "boot of another"


def event(phase: str, name: str, ts: int, tid: int = 7, /, **arguments: Any) -> dict[str, Any]:
    more = {"cat": "rows"} if phase == "B" else {}
    return {"name": name, "ph": phase, "ts": ts, "pid": 42, "tid": tid, **more, "args": arguments}


def write_part(
    folder: Path, process: str, *events: dict[str, Any], machine: str = HERE, monotonic_s: int = 0, wall_s: int = 1000
) -> Path:
    folder.mkdir(exist_ok=True)
    clock = {"machine": machine, "monotonic_ns": monotonic_s * 10**9, "wall_ns": wall_s * 10**9}
    facts = [event("M", "process_name", 0, 0, name=process), event("M", "clock", 0, 0, **clock)]
    facts.append(event("M", "thread_name", 0, name="calls"))
    path = folder / f"{process}.42.{len(list(folder.iterdir()))}.json"
    path.write_text("[\n" + "".join(f"{json.dumps(each)},\n" for each in (*facts, *events)))
    return path


def joined(folder: Path) -> Trace:
    write_trace(folder / "trace", folder / "trace.json")
    return checked_trace(folder / "trace.json")


def span_of(name: str, begin: int, end: int, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return event("B", name, begin, **arguments), event("E", name, end)


def test_arrows_lead_from_the_last_writer_to_each_reader(tmp_path: Path) -> None:
    written = [*span_of("write rows", 10, 20, writes="1/play/0"), *span_of("write rows", 40, 50, writes="1/play/0")]
    write_part(tmp_path / "trace", "rollout 0", *written)  # of the same number as the other process
    reads = [*span_of("read rows", 30, 35, reads=["1/play/0"]), *span_of("read rows", 60, 65, reads=["1/play/0", "x"])]
    write_part(tmp_path / "trace", "trainer 0", *reads)
    trace = joined(tmp_path)
    ends = [(start.process, start.begin, end.process, end.begin) for start, end in trace.arrows]
    assert ends == [("rollout 0", 0, "trainer 0", 20), ("rollout 0", 30, "trainer 0", 50)]


def test_spans_of_a_killed_process_end_with_it(tmp_path: Path) -> None:
    begun = [event("B", "play", 10), event("B", "step", 12), event("E", "step", 30), event("B", "step", 40)]
    path = write_part(tmp_path / "trace", "rollout 0", *begun)
    with path.open("a") as file:
        file.write('{"name": "step", "ph": "E", "ts": 5')  # the kill came within the line
    trace = joined(tmp_path)
    assert [(each.name, each.begin, each.end) for each in trace.slices] == [
        ("step", 2, 20),
        ("step", 30, 30),
        ("play", 0, 30),
    ]
    assert trace.named("play")[0].arguments == {"unfinished": True}


def test_a_span_whose_end_was_interrupted_ends_with_the_one_around_it(tmp_path: Path) -> None:
    """The time limit of a node may raise its error within the recorder."""
    events = [event("B", "play", 10), event("B", "act", 12), event("E", "play", 20), *span_of("train", 30, 40)]
    write_part(tmp_path / "trace", "rollout 0", *events)
    trace = joined(tmp_path)
    assert [(each.name, each.end) for each in trace.slices] == [("act", 10), ("play", 10), ("train", 30)]


def test_a_clock_that_the_flow_measured_is_corrected(tmp_path: Path) -> None:
    measured = event("M", "clock_offset", 0, 0, machine=THERE, microseconds=5_000_000)
    write_part(tmp_path / "trace", "flow", measured, *span_of("iteration 1", 1_000_000, 9_000_000))
    write_part(tmp_path / "trace", "rollout 0", *span_of("play", 7_000_000, 8_000_000), machine=THERE, wall_s=77)
    trace = joined(tmp_path)
    assert [(each.name, each.begin) for each in trace.slices] == [("iteration 1", 0), ("play", 1_000_000)]


def test_a_clock_that_nobody_measured_is_aligned_by_the_wall_clock(tmp_path: Path) -> None:
    """Such as after a restart of the machine, whose clock begins anew."""
    write_part(tmp_path / "trace", "flow", *span_of("iteration 1", 5_000_000, 6_000_000), machine=THERE, wall_s=1000)
    write_part(tmp_path / "trace", "flow", *span_of("iteration 2", 2_000_000, 3_000_000), wall_s=1100)
    trace = joined(tmp_path)
    assert {each.name: each.begin for each in trace.slices} == {"iteration 1": 0, "iteration 2": 97_000_000}


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_trace(tmp_path, tmp_path / "trace.json")


def test_lines_of_another_program_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "notes.json").write_text('{"title": "notes"}\n{"name": "x"}\n[]\n')
    assert write_trace(tmp_path / "trace", tmp_path / "trace.json") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace", "trace.json"]
