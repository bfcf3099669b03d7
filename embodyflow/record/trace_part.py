"""The trace of one process, as :mod:`embodyflow.process.tracing` records it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]

_NEEDED = {"name", "ph", "ts", "pid", "tid"}


class TraceFacts:
    """What a process records about itself and about clocks.

    Args:
        path: File of the process.

    Attributes:
        process: Name of the process.
        host, pid: Machine and number of the process.
        machine: Name of the machine's clock; empty until the facts are read.
        wall_minus_monotonic: Difference of the machine's two clocks in µs.
        started: Wall clock at the start of the record in µs.
        offsets: Leads of other machines' clocks in µs, as the flow measured them.
        threads: Names of threads and lanes by number.
    """

    def __init__(self, path: Path) -> None:
        self.process, self.machine, self.wall_minus_monotonic, self.started = path.stem, "", 0, 0
        self.host, self.pid = "", 0
        self.offsets: dict[str, int] = {}
        self.threads: dict[int, str] = {}

    def read(self, event: Event) -> None:
        """Read an event of phase ``M``."""
        name, facts = event["name"], event["args"]
        if name == "process_name":
            self.process, self.pid = facts["name"], event["pid"]
        elif name == "process_labels":
            self.host = facts["labels"].rpartition(", process ")[0]
        elif name == "thread_name":
            self.threads[event["tid"]] = facts["name"]
        elif name == "clock":
            self.machine = facts["machine"]
            self.started = facts["wall_ns"] // 1000
            self.wall_minus_monotonic = (facts["wall_ns"] - facts["monotonic_ns"]) // 1000
        elif name == "clock_offset":
            self.offsets[facts["machine"]] = facts["microseconds"]


class TracePart(TraceFacts):
    """The events of one process.

    Args:
        path: File of the process.

    Attributes:
        first: Time of the first span in µs of the machine's clock; ``None`` without spans.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path
        self.first: int | None = None
        for event in self.events():
            if event["ph"] == "M":
                self.read(event)
            elif self.first is None:
                self.first = event["ts"]
                if self.process != "flow":  # only the flow measures clocks
                    break

    def events(self) -> Iterator[Event]:
        """Yield the events; a line that a killed process left half written does not count."""
        with self._path.open("rb") as file:
            for line in file:
                if (event := parsed(line)) is not None:
                    yield event


def parsed(line: bytes) -> Event | None:
    """Return the event of a line; ``None`` for a line without a whole event."""
    if not line.endswith(b"\n") or not line.startswith(b"{"):
        return None
    try:
        event: Event = json.loads(line.rstrip(b",\n"))
    except ValueError:  # a disk was full
        return None
    return event if event.keys() >= _NEEDED else None  # a file of another program has other lines
