"""The spans of one process, read as the process appends them to its trace."""

from collections import defaultdict
from pathlib import Path

from embodyflow.record.trace_part import Event, TraceFacts, parsed


class RecordedSpan:
    """A span as its process recorded it.

    Attributes:
        process: Process that recorded it.
        number: Position among the spans of the process, from 0.
        name, category: Name and kind of the work, see :func:`embodyflow.process.tracing.span`.
        track: Name of its thread or track.
        begin: Begin in µs of the machine's monotonic clock.
        end: End in the same unit; ``None`` while it has none.
        arguments: Facts from its begin and its end.
        around: Span around it on its track; ``None`` without one.
        parent: Span whose part it is; :mod:`embodyflow.record.otlp.parents` finds it once it has ended.
        least_end: Largest end of a span within it, in µs of the flow's wall clock.
    """

    __slots__ = (
        *("process", "number", "name", "category", "track", "begin", "end", "arguments", "around", "parent"),
        "least_end",
    )

    def __init__(self, process: "ProcessSpans", number: int, event: Event, around: "RecordedSpan | None") -> None:
        self.process, self.number, self.around = process, number, around
        self.name: str = event["name"]
        self.category: str = event["cat"]
        self.track = process.facts.threads.get(event["tid"], "")
        self.begin: int = event["ts"]
        self.end: int | None = None
        self.arguments: Event = dict(event["args"])
        self.parent: RecordedSpan | None = None
        self.least_end = 0


class ProcessSpans:
    """The spans of one process.

    Args:
        path: File of the process.

    Attributes:
        path: File of the process.
        name: Name of the file, which no other process has.
        facts: Facts that the process recorded about itself.
        last: Time of the last event in µs of the machine's monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        self.facts, self.last = TraceFacts(path), 0
        self._offset, self._number = 0, 0
        self._open: dict[int, list[RecordedSpan]] = defaultdict(list)  # by track

    def read_facts(self) -> None:
        """Read what the process recorded about itself before its first span."""
        with self.path.open("rb") as file:
            for event in map(parsed, file):
                if event is not None and event["ph"] != "M":
                    return
                if event is not None:
                    self.facts.read(event)

    def read(self) -> tuple[list[RecordedSpan], list[RecordedSpan]]:
        """Read what was appended since the last call; return the spans that began and those that ended."""
        begun: list[RecordedSpan] = []
        ended: list[RecordedSpan] = []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # the process is writing it
                    break
                self._offset += len(line)
                if (event := parsed(line)) is not None:
                    self._take(event, begun, ended)
        return begun, ended

    def end_all(self) -> list[RecordedSpan]:
        """End the spans that the end of the process interrupted; return them, inner ones first."""
        interrupted = sorted((span for spans in self._open.values() for span in spans), key=lambda each: -each.number)
        self._open.clear()
        for span in interrupted:
            span.end = max(self.last, span.begin)
            span.arguments["unfinished"] = True
        return interrupted

    def _take(self, event: Event, begun: list[RecordedSpan], ended: list[RecordedSpan]) -> None:
        if event["ph"] == "M":
            self.facts.read(event)
            return
        self.last = max(self.last, event["ts"])
        spans = self._open[event["tid"]]
        if event["ph"] == "B":
            spans.append(RecordedSpan(self, self._number, event, spans[-1] if spans else None))
            self._number += 1
            begun.append(spans[-1])
        elif any(span.name == event["name"] for span in spans):  # ends those within, whose end was interrupted
            while True:
                span = spans.pop()
                span.end = event["ts"]
                ended.append(span)
                if span.name == event["name"]:
                    span.arguments |= event.get("args", {})
                    break
