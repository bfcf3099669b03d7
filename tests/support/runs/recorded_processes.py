"""Files of traces with spans at chosen times."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE, THERE = "boot of this machine", "boot of another"


@dataclass(frozen=True)
class Work:
    """A span to record; times in µs of the machine's monotonic clock, ``end=None`` for one that was interrupted.

    Lanes of a track have a number: ``nodes`` and ``nodes#2`` are lanes of ``nodes``.
    """

    begin: int
    end: int | None
    name: str
    category: str
    track: str = "calls"
    arguments: dict[str, Any] = field(default_factory=dict)


def lines_of(
    process: str, *works: Work, machine: str = HERE, wall_s: int = 1000, started: int = 0, offset: int | None = None
) -> list[tuple[int, str]]:
    """Return the lines of a process's file with the time at which it writes each.

    Args:
        process: Name of the process.
        works: Spans. Those of a track nest.
        machine: Name of the clock.
        wall_s: Wall clock in s when the monotonic clock shows 0.
        started: Time of the first line in µs.
        offset: By how many µs the clock of the machine :data:`THERE` is ahead, as this process measured it.
    """
    clock = {"machine": machine, "monotonic_ns": started * 1000, "wall_ns": wall_s * 10**9 + started * 1000}
    facts: list[tuple[str, int, dict[str, Any]]] = [
        ("process_name", 0, {"name": process}),
        ("process_labels", 0, {"labels": f"node-1, process {len(process)}"}),
        ("clock", 0, clock),
    ]
    if offset is not None:
        facts.append(("clock_offset", 0, {"machine": THERE, "microseconds": offset}))
    tracks = list(dict.fromkeys(work.track for work in works))
    facts += [("thread_name", 10 + number, {"name": track.partition("#")[0]}) for number, track in enumerate(tracks)]
    ids = {"pid": len(process)}
    events = [
        (started, {"name": name, "ph": "M", "ts": started, "tid": tid, "args": args, **ids})
        for name, tid, args in facts
    ]
    for work in works:
        place = {"name": work.name, "tid": 10 + tracks.index(work.track), **ids}
        events.append(
            (work.begin, {"ph": "B", "cat": work.category, "args": work.arguments, "ts": work.begin, **place})
        )
        if work.end is not None:
            events.append((work.end, {"ph": "E", "ts": work.end, **place}))
    events.sort(key=lambda each: each[0])
    return [(started, "[\n"), *((time, json.dumps(event) + ",\n") for time, event in events)]


def write_process(folder: Path, process: str, *works: Work, **facts: Any) -> None:
    """Write the file of a process; see :func:`lines_of`."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{process.replace(' ', '-')}.{len(list(folder.iterdir()))}.json"
    path.write_text("".join(line for _, line in lines_of(process, *works, **facts)))
