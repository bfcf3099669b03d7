"""Spans of what a run's processes do, recorded while they happen (``tracking.trace``).

Each process appends to a file of its own in Chrome's trace-event format, one event per line and one write per event.
So a kill loses nothing that was recorded, and the file opens as it is: the format allows an array without its end.
:mod:`embodyflow.record.trace_file` joins the files. Times are of CLOCK_MONOTONIC, which all processes of a machine
share. A process that does not record spends about 0.2 µs on a span.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Value: TypeAlias = str | int | float | Sequence[str] | None

FIRST_LANE = 10_000_000
"""Number of the first lane. Numbers of threads are smaller: the kernel's limit is 2²²."""


class Span(Protocol):
    """A piece of work from the beginning of a ``with`` block to its end."""

    def __enter__(self) -> "Span": ...

    def __exit__(self, *error: object) -> None: ...

    def note(self, **arguments: Value) -> None:
        """Add arguments that are known only now."""


class TraceFile:
    """The events of one process.

    Args:
        folder: Folder of the run's traces, created if it is missing.
        process: Name of the process, such as ``rollout 0``.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self.folder, self.process = folder, process
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{process.replace(' ', '-')}.{os.getpid()}.{time.monotonic_ns()}.json"
        self._file: int | None = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._known: set[int] = set()  # threads that have a name
        self._lanes: dict[str, list[int]] = {}  # lanes of a track
        self._free: dict[str, list[int]] = {}  # those of them that no span uses
        os.write(self._file, b"[\n")
        self.describe("process_name", {"name": process})
        self.describe("process_labels", {"labels": f"{socket.gethostname()}, process {self._pid}"})
        clocks = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        self.describe("clock", {"machine": machine(), **clocks})

    def event(self, phase: str, name: str, tid: int, **fields: Any) -> None:
        """Append an event; ``phase`` is ``B``, ``E`` or ``M``, see Chrome's trace-event format."""
        now = time.monotonic_ns() // 1000
        event = {"name": name, "ph": phase, "ts": now, "pid": self._pid, "tid": tid, **fields}
        if self._file is not None:  # a coroutine may end after the run
            os.write(self._file, json.dumps(event).encode() + b",\n")

    def describe(self, kind: str, facts: Mapping[str, Value], tid: int = 0) -> None:
        """Append facts about the process, a clock or, with its number, a thread."""
        self.event("M", kind, tid, args=facts)

    def thread(self) -> int:
        """Return the number of the calling thread, whose name is recorded once."""
        tid = threading.get_native_id()
        if tid not in self._known:
            self._known.add(tid)
            name = threading.current_thread().name
            self.describe("thread_name", {"name": "calls" if name.startswith("Dummy-") else name}, tid)  # Ray's threads
        return tid

    def take_lane(self, track: str) -> int:
        """Return a lane of a track that no open span uses; spans of one lane never overlap."""
        with self._lock:
            if free := self._free.setdefault(track, []):
                free.sort()
                return free.pop(0)
            lanes = self._lanes.setdefault(track, [])
            lanes.append(FIRST_LANE + sum(map(len, self._lanes.values())))
        self.describe("thread_name", {"name": track}, lanes[-1])
        return lanes[-1]

    def leave_lane(self, track: str, lane: int) -> None:
        """Let other spans use a lane."""
        with self._lock:
            self._free[track].append(lane)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class _Recorded:
    def __init__(self, file: TraceFile, name: str, category: str, track: str | None, arguments: dict[str, Value]):
        self._file, self._name, self._category, self._track = file, name, category, track
        self._arguments, self._noted = arguments, dict[str, Value]()

    def __enter__(self) -> "_Recorded":
        self._tid = self._file.thread() if self._track is None else self._file.take_lane(self._track)
        self._file.event("B", self._name, self._tid, cat=self._category, args=self._arguments)
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self._noted["error"] = getattr(error[0], "__name__", "")
        self._file.event("E", self._name, self._tid, **({"args": self._noted} if self._noted else {}))
        if self._track is not None:
            self._file.leave_lane(self._track, self._tid)

    def note(self, **arguments: Value) -> None:
        self._noted |= arguments


class _NotRecorded:
    def __enter__(self) -> "_NotRecorded":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note(self, **arguments: Value) -> None:
        pass


_NOTHING = _NotRecorded()
_file: TraceFile | None = None


def span(name: str, category: str, *, track: str | None = None, **arguments: Value) -> Span:
    """Return a block that records itself, if this process records.

    Args:
        name: Name of the work.
        category: Kind of work: ``run``, ``iteration``, ``node``, ``call``, ``policy``, ``environment``, ``training``,
            ``rows``, ``weights``, ``disk`` or ``wait``.
        track: Name of the track to show it on, for coroutines, which overlap in one thread; ``None`` shows it on the
            thread that runs it.
        arguments: Further facts.
    """
    return _NOTHING if _file is None else _Recorded(_file, name, category, track, arguments)


def trace_file() -> TraceFile | None:
    """Return the file that this process records to; ``None`` if it does not record."""
    return _file


def record(folder: Path, process: str) -> None:
    """Record the spans of this process from now on, unless it records already.

    Args:
        folder: Folder of the run's traces.
        process: Name of the process.
    """
    global _file
    if _file is None:
        _file = TraceFile(folder, process)


@contextmanager
def recording(folder: Path, process: str) -> Iterator[None]:
    """Record the spans of this process within the block."""
    global _file
    record(folder, process)
    try:
        yield
    finally:
        if _file is not None:
            _file.close()
        _file = None


def machine() -> str:
    """Return a name of the machine that its processes share, for as long as its clock runs."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
