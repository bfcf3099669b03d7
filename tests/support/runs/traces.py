"""What a joined trace must be, so that Perfetto and chrome://tracing open it without an error."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = {"B": {"name", "cat", "args"}, "E": {"name"}, "M": {"name", "args"}, "s": {"name", "id"}, "f": {"name", "id"}}


@dataclass(frozen=True)
class Slice:
    """A span of a trace, in µs, with the names of its process and its track and of the spans around it."""

    name: str
    category: str
    process: str
    track: str
    begin: int
    end: int
    arguments: dict[str, Any]
    around: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """Spans of a trace, and the pairs of spans that its arrows connect."""

    slices: list[Slice]
    arrows: list[tuple[Slice, Slice]]

    def named(self, name: str) -> list[Slice]:
        """Return the spans of a name."""
        return [each for each in self.slices if each.name == name]


def checked_trace(path: Path) -> Trace:
    """Return the spans and arrows of a trace; fail if an event lacks a key, spans overlap, or an arrow has no end."""
    events = json.loads(path.read_text())
    names: dict[tuple[str, int], str] = {}
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        assert event.keys() >= {"ph", "pid", "tid"} | KEYS[event["ph"]], event
        if event["ph"] == "M" and "name" in event["args"]:
            names[event["name"], event["tid" if event["name"] == "thread_name" else "pid"]] = event["args"]["name"]
        elif event["ph"] != "M":
            assert isinstance(event["ts"], int) and event["ts"] >= 0, event
            tracks[event["pid"], event["tid"]].append(event)
    slices: list[Slice] = []
    ends: dict[int, dict[str, Slice]] = defaultdict(dict)
    for (pid, tid), track in tracks.items():
        of = names["process_name", pid], names["thread_name", tid]
        found = _slices([event for event in track if event["ph"] in "BE"], of)
        slices += found
        for event in track:
            if event["ph"] in "sf":
                assert event["ph"] not in ends[event["id"]], f"two ends of arrow {event['id']}"
                within = [each for each in found if each.begin <= event["ts"] <= each.end]
                ends[event["id"]][event["ph"]] = max(within, key=lambda each: len(each.around))
    arrows = [(each["s"], each["f"]) for each in ends.values()]
    assert all(start.begin <= end.begin for start, end in arrows)
    return Trace(slices, arrows)


def _slices(events: list[dict[str, Any]], of: tuple[str, str]) -> list[Slice]:
    open_spans: list[dict[str, Any]] = []
    found, last = [], 0
    for event in events:
        assert event["ts"] >= last, f"{of}: time runs backward at {event}"
        last = event["ts"]
        if event["ph"] == "B":
            open_spans.append(event)
            continue
        begin = open_spans.pop()
        assert begin["name"] == event["name"], f"{of}: {event['name']} ends within {begin['name']}"
        around = tuple(each["name"] for each in open_spans)
        arguments = begin["args"] | event.get("args", {})
        found.append(Slice(begin["name"], begin["cat"], *of, begin["ts"], event["ts"], arguments, around))
    assert not open_spans, f"{of}: no end of {open_spans}"
    return found
