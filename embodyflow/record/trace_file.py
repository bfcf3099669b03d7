"""The trace of a run: the files of all its processes, joined into one that Perfetto and chrome://tracing open.

The joined file is a JSON array of trace events. Its processes and threads have numbers of their own, since processes of
several machines may have the same. Times are microseconds since the first event. An arrow leads from each span that
wrote rows or weights to each span that read them.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embodyflow.process.files.durable_files import replacing
from embodyflow.record.trace_part import Event, TracePart

ORDER = ("flow", "rollout", "evaluation", "trainer")
"""First words of the names of processes, in the order in which a viewer shows them; others come last."""


@dataclass(frozen=True)
class _Place:
    """A moment on a track of the joined file, in µs."""

    pid: int
    tid: int
    begin: int
    end: int


@dataclass
class _Arrows:
    """Spans that wrote and read shards, by the shard's id."""

    writes: dict[str, list[_Place]] = field(default_factory=lambda: defaultdict(list))
    reads: dict[str, list[_Place]] = field(default_factory=lambda: defaultdict(list))

    def add(self, place: _Place, arguments: Event) -> None:
        if (shard := arguments.get("writes")) is not None:
            self.writes[shard].append(place)
        for shard in arguments.get("reads", ()):
            self.reads[shard].append(place)

    def events(self) -> Iterator[Event]:
        """Yield the two ends of each arrow: from the last span that wrote the shard before the reader had read it."""
        number = 0
        for shard, readers in self.reads.items():
            for reader in readers:
                written = [place for place in self.writes.get(shard, ()) if place.begin <= reader.begin]
                if not written:  # its process did not record
                    continue
                number += 1
                writer = max(written, key=lambda place: place.begin)
                for phase, place in (("s", writer), ("f", reader)):
                    where = {"ts": place.begin, "pid": place.pid, "tid": place.tid}
                    yield {"name": "rows", "cat": "rows", "ph": phase, "id": number, "bp": "e", **where}


def write_trace(folder: Path, path: Path) -> int:
    """Join the files of a run's processes; return the number of spans.

    Args:
        folder: Folder that holds them.
        path: File to write.

    Raises:
        FileNotFoundError: The folder holds none.
    """
    parts = sorted(map(TracePart, folder.glob("*.json")), key=_order)
    if not parts:
        raise FileNotFoundError(f"{folder} holds no trace")
    shifts = _shifts(parts)
    starts = [part.first + shift for part, shift in zip(parts, shifts, strict=True) if part.first is not None]
    start, arrows, num_spans = min(starts, default=0), _Arrows(), 0
    with replacing(path) as file:
        file.write("[\n")
        separator = ""
        for number, (part, shift) in enumerate(zip(parts, shifts, strict=True), start=1):
            for event in _joined(part, number, shift - start, arrows):
                num_spans += event["ph"] == "B"
                file.write(f"{separator}{json.dumps(event)}")
                separator = ",\n"
        for event in arrows.events():
            file.write(f"{separator}{json.dumps(event)}")
        file.write("\n]\n")
    return num_spans


def _order(part: TracePart) -> tuple[int, str, int]:
    first = part.process.split()[0]
    return ORDER.index(first) if first in ORDER else len(ORDER), part.process, part.first or 0


def _shifts(parts: Sequence[TracePart]) -> list[int]:
    """Return the µs to add to the times of each part, so that all clocks are that of the last flow.

    A part of a machine whose clock no flow has measured is aligned by its wall clock.
    """
    flows = [part for part in parts if part.process == "flow"] or parts
    flow = max(flows, key=lambda part: part.wall_minus_monotonic + (part.first or 0))
    alike = [each for each in flows if each.machine == flow.machine]
    offsets = {machine: offset for each in alike for machine, offset in each.offsets.items()}
    shifts = {flow.machine: 0} | {machine: -offset for machine, offset in offsets.items()}
    return [shifts.get(part.machine, part.wall_minus_monotonic - flow.wall_minus_monotonic) for part in parts]


def _joined(part: TracePart, number: int, shift: int, arrows: _Arrows) -> Iterator[Event]:
    """Yield the events of a part as they are in the joined file; spans of one track nest, and each has an end."""
    tids: dict[int, int] = {}
    open_spans: dict[int, list[Event]] = defaultdict(list)
    last = 0
    yield {"name": "process_sort_index", "ph": "M", "pid": number, "tid": 0, "args": {"sort_index": number}}
    for event in part.events():
        tid = tids.setdefault(event["tid"], 1000 * number + len(tids))
        event |= {"pid": number, "tid": tid}
        if event["ph"] == "M":
            event.pop("ts")
            yield event
            continue
        last = event["ts"] = max(event["ts"] + shift, 0)
        spans = open_spans[tid]
        if event["ph"] == "B":
            spans.append(event)
            yield event
        elif any(span["name"] == event["name"] for span in spans):  # ends those within, whose end was interrupted
            while True:
                span = spans.pop()
                yield event | {"name": span["name"]}
                if span["name"] == event["name"]:
                    break
            arguments = span["args"] | event.get("args", {})
            arrows.add(_Place(number, tid, span["ts"], event["ts"]), arguments)
    for spans in open_spans.values():  # the process was killed within them, or is still at work
        for span in reversed(spans):
            yield {**span, "ph": "E", "ts": last, "args": {"unfinished": True}}
