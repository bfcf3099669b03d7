"""Spans of a process, recorded by threads and coroutines."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from traces import checked_trace

from embodyflow.process.tracing import record, recording, span, trace_file
from embodyflow.record.trace_file import write_trace


def test_a_process_that_does_not_record_spends_no_time_on_spans() -> None:
    with span("play", "call", iteration=1) as first:
        first.note(rows=3)
    assert trace_file() is None and span("play", "call") is span("train", "call")
    began = time.thread_time()  # a busy machine stretches only the time by the clock
    for _ in range(10_000):
        with span("play", "call", iteration=1):
            pass
    assert time.thread_time() - began < 0.2  # it takes 3 ms


def test_spans_nest_on_their_threads(tmp_path: Path) -> None:
    def work(name: str) -> None:
        with span(name, "call", iteration=2) as outer, span(f"{name} within", "policy"):
            time.sleep(0.002)
            outer.note(rows=5)

    with recording(tmp_path / "trace", "rollout 0"):
        threads = [threading.Thread(target=work, args=(name,), name=name) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert write_trace(tmp_path / "trace", tmp_path / "trace.json") == 4
    trace = checked_trace(tmp_path / "trace.json")
    for name in ("one", "two"):
        [outer], [inner] = trace.named(name), trace.named(f"{name} within")
        assert (outer.process, outer.track, outer.arguments) == ("rollout 0", name, {"iteration": 2, "rows": 5})
        assert inner.around == (name,) and inner.end - inner.begin >= 2000
        assert outer.begin <= inner.begin and inner.end <= outer.end


def test_coroutines_that_overlap_have_lanes_of_their_own(tmp_path: Path) -> None:
    async def node(name: str, seconds: float) -> None:
        with span(name, "node", track="nodes"):
            await asyncio.sleep(seconds)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(node("long", 0.05))
            group.create_task(node("short", 0.01))
        await node("later", 0.0)

    with recording(tmp_path / "trace", "flow"):
        asyncio.run(run())
    write_trace(tmp_path / "trace", tmp_path / "trace.json")
    trace = checked_trace(tmp_path / "trace.json")
    assert [each.name for each in trace.slices] == ["long", "later", "short"]  # the free lane is used again
    assert {each.track for each in trace.slices} == {"nodes"}


def test_a_span_names_the_error_that_ended_it(tmp_path: Path) -> None:
    with recording(tmp_path / "trace", "trainer 0"), pytest.raises(KeyError), span("train", "call"):
        raise KeyError("rows")
    write_trace(tmp_path / "trace", tmp_path / "trace.json")
    assert checked_trace(tmp_path / "trace.json").named("train")[0].arguments == {"error": "KeyError"}


def test_the_file_of_a_process_is_a_trace_before_its_end(tmp_path: Path) -> None:
    with recording(tmp_path, "rollout 1"), span("play", "call"):
        record(tmp_path, "another name")  # it records already
        [path] = tmp_path.iterdir()
        text = path.read_text()
    assert text.startswith("[\n") and text.endswith(",\n")
    events = json.loads(text.rstrip(",\n") + "]")  # as viewers complete it
    assert [event["ph"] for event in events] == ["M", "M", "M", "M", "B"]
    with span("after the end", "call"):
        assert trace_file() is None
