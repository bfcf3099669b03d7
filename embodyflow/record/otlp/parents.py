"""Which span each span is a part of, across the processes of a run."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from embodyflow.record.otlp.process_spans import ProcessSpans, RecordedSpan

MOST_LOOKED_AT = 100
"""Number of spans before another that are looked at for one that contains it."""

ENVIRONMENTS = " environments"
"""Follows the name of a worker in the names of the processes of its environments."""


class _Hosts:
    """Spans that others may be part of, in the order of their begin."""

    def __init__(self) -> None:
        self._spans: list[RecordedSpan] = []
        self._begins: list[int] = []

    def add(self, span: RecordedSpan, begin: int) -> None:
        place = bisect_right(self._begins, begin)
        self._begins.insert(place, begin)
        self._spans.insert(place, span)

    def before(self, begin: int) -> Sequence[RecordedSpan]:
        """Return the last spans that began before a time, last ones first."""
        place = bisect_right(self._begins, begin)
        return self._spans[max(place - MOST_LOOKED_AT, 0) : place][::-1]


class Session:
    """The processes of a run from a start or resume to its end.

    A span is part of the one around it on its track. Else a call of a node on a rank is part of the flow's span of that
    node, a span of the flow is part of the node or iteration that it names, and a tool call or a step of environments
    is part of the worker's call that uses its model then. What remains is part of the whole run. A parent contains its
    children in time.

    Args:
        flow: Process of the flow.

    Attributes:
        processes: All of its processes.
        root: Span of the whole run; ``None`` until it has begun.
    """

    def __init__(self, flow: ProcessSpans) -> None:
        self.flow, self.processes = flow, [flow]
        self.root: RecordedSpan | None = None
        self._of_iterations: dict[tuple[str, object], list[RecordedSpan]] = defaultdict(list)
        self._of_names: dict[str, _Hosts] = defaultdict(_Hosts)
        self._of_tracks: dict[str, _Hosts] = defaultdict(_Hosts)
        self._calls: dict[str, _Hosts] = defaultdict(_Hosts)  # of each process, those with its model

    def begin_of(self, span: RecordedSpan) -> int:
        """Return the begin of a span in µs of the flow's wall clock."""
        return span.begin + self._shift(span.process)

    def end_of(self, span: RecordedSpan) -> int | None:
        """Return the end in the same unit; ``None`` for a span without one. An interrupted span covers its children."""
        if span.end is None:
            return None
        end = span.end + self._shift(span.process)
        return max(end, span.least_end) if span is self.root or "unfinished" in span.arguments else end

    def add(self, span: RecordedSpan) -> None:
        """Add a span that has begun to those that others may be part of."""
        if span.process is not self.flow:
            if span.category == "call" and span.around is None and span.arguments.get("needs_model", True):
                self._calls[span.process.facts.process].add(span, self.begin_of(span))
        elif (span.name, span.category) == ("run", "run"):
            self.root = span
        else:
            self._add_of_flow(span)

    def _add_of_flow(self, span: RecordedSpan) -> None:
        iteration = span.arguments.get("iteration")
        if span.category == "node":
            self._of_iterations[span.name, iteration].append(span)
        elif span.category == "iteration":
            self._of_iterations["iteration", iteration].append(span)
        elif span.category == "evaluation":
            self._of_iterations["evaluation", span.arguments["version"]].append(span)
        if span.track in ("phases", "commits") or span.name == "commit":
            track = "nodes" if span.name == "commit" else span.track
            self._of_tracks[track].add(span, self.begin_of(span))
            self._of_names[span.name].add(span, self.begin_of(span))

    def settle(self, span: RecordedSpan) -> None:
        """Find the parent of a span that has ended."""
        span.parent = span.around or self._parent(span)
        end = self.end_of(span)
        if span.parent is not None and end is not None:
            span.parent.least_end = max(span.parent.least_end, end)

    def _parent(self, span: RecordedSpan) -> RecordedSpan | None:
        if span is self.root:
            return None
        found = self._of_its_iteration(span) or self._of_its_request(span)
        if found is None and span.category != "call":
            worker = span.process.facts.process.partition(ENVIRONMENTS)[0]
            found = self._containing(self._calls[worker].before(self.begin_of(span)), span)
        return found or self.root

    def _of_its_iteration(self, span: RecordedSpan) -> RecordedSpan | None:
        """Return the node or iteration that a span names and lies in."""
        iteration = span.arguments.get("iteration")
        node = str(span.arguments.get("node", span.name if span.category == "call" else ""))
        kinds = (node, "iteration", "evaluation") if span.category == "node" else (node, "iteration")
        named = [self._of_iterations.get((kind, iteration), []) for kind in kinds]
        return self._containing([host for hosts in named for host in reversed(hosts)], span)

    def _of_its_request(self, span: RecordedSpan) -> RecordedSpan | None:
        """Return the phase or the part of a commit that a span without an iteration belongs to."""
        hosts: list[_Hosts] = []
        if span.process is self.flow:
            tracks = {"commits": ["nodes", "phases"], "nodes": ["phases"]}.get(span.track, [])
        else:
            is_asked = span.category == "call" or span.process.facts.process.startswith("trainer")
            tracks = ["commits", "phases"] if is_asked else []
            hosts += [self._of_names[span.name]]
        begin = self.begin_of(span)
        for each in (*hosts, *(self._of_tracks[track] for track in tracks)):
            if (found := self._containing(each.before(begin), span)) is not None:
                return found
        return None

    def _containing(self, hosts: Sequence[RecordedSpan], span: RecordedSpan) -> RecordedSpan | None:
        begin, end = self.begin_of(span), self.end_of(span)
        assert end is not None
        for host in hosts:
            host_end = self.end_of(host) if "unfinished" not in host.arguments else None
            if host is not span and self.begin_of(host) <= begin and (host_end is None or end <= host_end):
                return host
        return None

    def _shift(self, process: ProcessSpans) -> int:
        """Return the µs from a process's monotonic clock to the wall clock of the flow.

        The clock of a machine that the flow has not measured is taken to show the same wall time.
        """
        facts, flow = process.facts, self.flow.facts
        if facts.machine == flow.machine:
            return flow.wall_minus_monotonic
        if facts.machine in flow.offsets:
            return flow.wall_minus_monotonic - flow.offsets[facts.machine]
        return facts.wall_minus_monotonic
