"""The spans of a run as OpenTelemetry has them: ids, parents, times and attributes."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from uuid import NAMESPACE_OID, UUID, uuid5

from embodyflow.record.otlp.parents import ENVIRONMENTS, Session
from embodyflow.record.otlp.process_spans import ProcessSpans, RecordedSpan

Attribute: TypeAlias = str | int | float | bool | Sequence[str]

RUN_IDS = {"flow_run": "flow", "task_run": "task"}
"""Types of Prefect's runs by the argument of a span that has the run's id."""


@dataclass(frozen=True)
class Span:
    """A span with its place in the trace of its flow run.

    Attributes:
        trace_id: The id of the Prefect flow run as a number of 128 bits.
        span_id: Hash of the trace id, the process and the span's position in it, 64 bits. It is the same whenever the
            span is sent.
        parent_id: ``span_id`` of its parent; ``None`` for the whole run.
        name: Name of the work.
        begin, end: Times in µs since 1970.
        error: Name of the error that ended it; ``None`` without one.
        attributes: Its facts. Names are those of OpenTelemetry and Prefect, else they begin with ``embodyflow.``.
        resource: Facts about its process, by the names of OpenTelemetry's semantic conventions.
    """

    trace_id: int
    span_id: int
    parent_id: int | None
    name: str
    begin: int
    end: int
    error: str | None
    attributes: dict[str, Attribute]
    resource: dict[str, Attribute]


class RunSpans:
    """Reads the traces of a run's processes, at once or while they are written.

    Args:
        folder: Folder of the traces.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: set[Path] = set()
        self._sessions: list[Session] = []
        self._resources: dict[str, dict[str, Attribute]] = {}

    def read(self, *, is_over: bool) -> list[Span]:
        """Return the spans that have ended since the last call, children before their parents.

        Args:
            is_over: Whether the run is over, so that spans without an end were interrupted.
        """
        self._find_processes()
        found: list[Span] = []
        for number, session in enumerate(self._sessions):
            found += self._read(session, is_over=is_over or number < len(self._sessions) - 1)
        return found

    def _find_processes(self) -> None:
        """Assign new processes to sessions: to the last flow that had started before them."""
        new = [ProcessSpans(path) for path in sorted(self._folder.glob("*.json")) if path not in self._paths]
        for process in new:
            process.read_facts()
        known = sorted((each for each in new if each.facts.machine), key=lambda each: each.facts.started)
        for flow in (each for each in known if each.facts.process == "flow"):
            self._sessions.append(Session(flow))
        for process in known:
            self._paths.add(process.path)
            if process.facts.process != "flow" and self._sessions:
                earlier = [each for each in self._sessions if each.flow.facts.started <= process.facts.started]
                (earlier or self._sessions)[-1 if earlier else 0].processes.append(process)

    def _read(self, session: Session, *, is_over: bool) -> Iterator[Span]:
        ended: list[RecordedSpan] = []
        # The flow last, and a worker after its environments: who asks for work writes its begin before the work ends.
        for process in reversed(session.processes):
            begun, more = process.read()
            ended += more
            for span in begun:
                session.add(span)
        if is_over:
            ended += [span for process in session.processes for span in process.end_all()]
        if session.root is None:
            return
        ended.sort(key=lambda span: (-session.begin_of(span), span.process is session.flow, -span.number))
        for span in ended:
            session.settle(span)
        for span in ended:
            yield self._span(session, session.root, span)

    def _span(self, session: Session, root: RecordedSpan, span: RecordedSpan) -> Span:
        end = session.end_of(span)
        assert end is not None
        trace_id = UUID(root.arguments["flow_run"]).int
        return Span(
            trace_id,
            _span_id(trace_id, span),
            None if span.parent is None else _span_id(trace_id, span.parent),
            span.name,
            session.begin_of(span),
            end,
            span.arguments.get("error"),
            dict(_attributes(span)),
            self._resource(root, span.process),
        )

    def _resource(self, root: RecordedSpan, process: ProcessSpans) -> dict[str, Attribute]:
        if process.name not in self._resources:
            self._resources[process.name] = {
                "service.name": "embodyflow",
                "service.instance.id": str(uuid5(NAMESPACE_OID, f"{root.arguments['flow_run']}/{process.name}")),
                "host.name": process.facts.host,
                "process.pid": process.facts.pid,
                "embodyflow.run": root.arguments["run"],
                "embodyflow.process": process.facts.process,
            }
        return self._resources[process.name]


def _span_id(trace_id: int, span: RecordedSpan) -> int:
    text = f"{trace_id:032x}/{span.process.name}/{span.number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) or 1


def _attributes(span: RecordedSpan) -> Iterator[tuple[str, Attribute]]:
    yield "embodyflow.category", span.category
    yield "thread.name", span.track
    role, _, rank = span.process.facts.process.partition(ENVIRONMENTS)[0].rpartition(" ")
    if role:
        yield "embodyflow.role", role
        yield "embodyflow.rank", int(rank)
    yield from _place(span)
    for name, value in span.arguments.items():
        if name in RUN_IDS:
            yield from {
                "prefect.run.id": value,
                "prefect.run.type": RUN_IDS[name],
                "prefect.run.name": span.name,
            }.items()
        elif name == "error":
            yield "error.type", value
        elif value is not None and name not in ("iteration", "node", "run"):
            yield f"embodyflow.{name}", value


def _place(span: RecordedSpan) -> Iterator[tuple[str, Attribute]]:
    """Yield the iteration and the node of a span, which may be those of a span that it is part of.

    The parents of its parent do not count: they are known only later if the span is read while the run is at work.
    """
    found: dict[str, Attribute] = {}
    for each in _within(span):
        if (iteration := each.arguments.get("iteration")) is not None:
            found.setdefault("embodyflow.iteration", iteration)
            if each.category in ("node", "call"):
                found.setdefault("embodyflow.node", each.name)
        if (node := each.arguments.get("node")) is not None:
            found.setdefault("embodyflow.node", node)
    yield from found.items()


def _within(span: RecordedSpan) -> Iterator[RecordedSpan]:
    """Yield a span, those around it on its track, and the parent of the outermost."""
    yield span
    while span.around is not None:
        span = span.around
        yield span
    if span.parent is not None:
        yield span.parent
