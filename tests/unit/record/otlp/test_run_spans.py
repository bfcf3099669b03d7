"""Spans of a run's processes with the spans that they are part of, in the traces of their flow runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from recorded_processes import HERE, THERE, Work, lines_of, write_process

from embodyflow.record.otlp.run_spans import RunSpans, Span

FLOW_RUN = "0197a3b2-5c1d-7e3f-8a4b-1c2d3e4f5a6b"
OTHER_FLOW_RUN = "0197a3b2-5c1d-7e3f-8a4b-1c2d3e4f5a6c"
TASK_RUN = "0197a3b2-0000-7e3f-8a4b-1c2d3e4f5a6b"


def run_of(begin: int, end: int | None, flow_run: str = FLOW_RUN) -> Work:
    return Work(begin, end, "run", "run", "run", {"run": "mine", "flow_run": flow_run})


def node(begin: int, end: int | None, name: str, iteration: int = 1, **more: Any) -> Work:
    return Work(begin, end, name, "node", "nodes", {"iteration": iteration, "run": "mine", **more})


def call(begin: int, end: int | None, name: str, *, needs_model: bool = True) -> Work:
    track = "calls" if needs_model else "calls#2"
    return Work(begin, end, name, "call", track, {"iteration": 1, "policy": 0, "needs_model": needs_model})


FLOW = (
    run_of(0, 1000),
    Work(10, 90, "start workers", "run", "phases"),
    Work(100, 500, "iteration 1", "iteration", "iterations", {"iteration": 1, "run": "mine"}),
    node(110, 200, "rollout", task_run=TASK_RUN, rows=8),
    node(210, 300, "train", error="ValueError"),
    node(310, 400, "train"),
    Work(320, 330, "wait for the trainer group", "wait", "waits", {"iteration": 1, "node": "train"}),
    node(410, 490, "commit"),
    Work(411, 489, "write checkpoint", "disk", "commits", {"checkpoint": "iteration-000001"}),
    Work(412, 450, "publish weights", "weights", "commits#2", {"version": 1}),
    Work(510, 700, "evaluate version 1", "evaluation", "evaluations", {"version": 1}),
    node(520, 620, "evaluate_greedy"),
    Work(530, 610, "flush checkpoint", "disk", "disk#2", {"iteration": 1}),
    Work(420, 600, "flush rows", "disk", "disk", {"iteration": 1, "node": "rollout"}),
)
ROLLOUT = (
    Work(20, 80, "build the engine", "call"),
    call(120, 190, "rollout"),
    Work(130, 180, "act", "policy", "calls", {"rows": 4}),
    call(165, 178, "reward", needs_model=False),
    Work(170, 175, "calculator", "environment", "tools"),
    Work(430, 440, "act", "policy", "a group"),
)
ENVIRONMENTS = (Work(140, 150, "step", "environment"), Work(700, 710, "close", "environment"))
TRAINER = (
    call(220, 290, "train"),
    call(320, 390, "train"),
    Work(330, 380, "micro-batch", "training", "calls", {"rows": 4}),
    Work(415, 440, "publish weights", "weights", "calls", {"version": 1, "writes": "weights/1/0"}),
    Work(445, 480, "save", "call"),
)
PROCESSES = {
    "flow": FLOW,
    "rollout 0": ROLLOUT,
    "rollout 0 environments 1": ENVIRONMENTS,
    "trainer 0": TRAINER,
}


def parents(spans: Sequence[Span]) -> list[tuple[str, str | None]]:
    """Return the names of each span and its parent, by begin; fail if a parent is missing or too short."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    found = []
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        parent = None if span.parent_id is None else by_id[span.parent_id]
        if parent is not None:
            assert parent.begin <= span.begin <= span.end <= parent.end, (span, parent)
            assert parent.trace_id == span.trace_id
        found.append((span.name, None if parent is None else parent.name))
    return found


def write_all(folder: Path) -> None:
    for process, works in PROCESSES.items():
        write_process(folder, process, *works, started=works[0].begin)


def test_each_span_is_part_of_the_work_that_asked_for_it(tmp_path: Path) -> None:
    write_all(tmp_path)
    spans = RunSpans(tmp_path).read(is_over=True)
    assert parents(spans) == [
        ("run", None),
        ("start workers", "run"),
        ("build the engine", "start workers"),
        ("iteration 1", "run"),
        ("rollout", "iteration 1"),
        ("rollout", "rollout"),
        ("act", "rollout"),
        ("step", "rollout"),
        ("reward", "iteration 1"),  # the flow has no span of this node
        ("calculator", "rollout"),
        ("train", "iteration 1"),
        ("train", "train"),
        ("train", "iteration 1"),
        ("train", "train"),
        ("wait for the trainer group", "train"),
        ("micro-batch", "train"),
        ("commit", "iteration 1"),
        ("write checkpoint", "commit"),
        ("publish weights", "commit"),
        ("publish weights", "publish weights"),
        ("flush rows", "run"),  # it ends after its node and its iteration
        ("act", "run"),
        ("save", "write checkpoint"),
        ("evaluate version 1", "run"),
        ("evaluate_greedy", "evaluate version 1"),
        ("flush checkpoint", "run"),
        ("close", "run"),
    ]
    [first, second] = [span for span in spans if span.name == "train" and "embodyflow.rank" not in span.attributes]
    calls = [span for span in spans if span.name == "train" and "embodyflow.rank" in span.attributes]
    assert [each.parent_id for each in calls] == [first.span_id, second.span_id]  # of two tries, each has its own
    assert [first.error, second.error] == [None, "ValueError"]


def test_a_span_has_the_ids_of_prefect_and_the_place_of_its_work(tmp_path: Path) -> None:
    write_all(tmp_path)
    spans = RunSpans(tmp_path).read(is_over=True)
    assert {span.trace_id for span in spans} == {UUID(FLOW_RUN).int}
    [of_node] = [span for span in spans if span.attributes.get("prefect.run.type") == "task"]
    assert of_node.attributes == {
        "embodyflow.category": "node",
        "thread.name": "nodes",
        "embodyflow.iteration": 1,
        "embodyflow.node": "rollout",
        "prefect.run.id": TASK_RUN,
        "prefect.run.type": "task",
        "prefect.run.name": "rollout",
        "embodyflow.rows": 8,
    }
    [root] = [span for span in spans if span.parent_id is None]
    assert root.attributes["prefect.run.id"] == FLOW_RUN and root.begin == 1000 * 10**6
    [step] = [span for span in spans if span.name == "step"]
    place = {
        "embodyflow.iteration": 1,
        "embodyflow.node": "rollout",
        "embodyflow.role": "rollout",
        "embodyflow.rank": 0,
    }
    assert place.items() <= step.attributes.items()
    resource = step.resource
    assert resource["service.name"] == "embodyflow" and resource["embodyflow.run"] == "mine"
    assert (resource["host.name"], resource["process.pid"]) == ("node-1", len("rollout 0 environments 1"))
    assert len({str(span.resource["service.instance.id"]) for span in spans}) == len(PROCESSES)


def test_spans_are_the_same_whether_they_are_read_while_they_are_written_or_later(tmp_path: Path) -> None:
    written = [
        (time, process, line)
        for process, works in PROCESSES.items()
        for time, line in lines_of(process, *works, started=works[0].begin)
    ]
    written.sort(key=lambda each: each[0])
    live = RunSpans(tmp_path)
    found: list[Span] = []
    for _, process, line in written:
        with (tmp_path / f"{process}.json").open("a") as file:
            file.write(line[:9])
            file.flush()
            found += live.read(is_over=False)  # within a line
            file.write(line[9:])
        found += live.read(is_over=False)
    assert len(found) == sum(map(len, PROCESSES.values())) and not live.read(is_over=True)
    at_once = RunSpans(tmp_path).read(is_over=True)
    assert sorted(found, key=lambda span: span.span_id) == sorted(at_once, key=lambda span: span.span_id)


def test_a_killed_run_and_its_resume_are_a_trace_each(tmp_path: Path) -> None:
    killed = (run_of(0, None), Work(10, None, "iteration 1", "iteration", "iterations", {"iteration": 1}))
    write_process(tmp_path, "flow", *killed, node(20, None, "rollout"))
    write_process(tmp_path, "rollout 0", call(30, None, "rollout"), Work(40, 50, "act", "policy"), started=5)
    resumed = (run_of(200, 300, OTHER_FLOW_RUN), node(210, 290, "rollout"))
    live = RunSpans(tmp_path)
    found = live.read(is_over=False)
    assert [span.name for span in found] == ["act"]
    write_process(tmp_path, "flow", *resumed, started=200)
    write_process(tmp_path, "rollout 0", call(220, 280, "rollout"), started=205)
    spans = RunSpans(tmp_path).read(is_over=True)
    found += live.read(is_over=False)  # the first flow has ended, since another has begun
    assert sorted(found, key=lambda span: span.span_id) == sorted(spans, key=lambda span: span.span_id)
    assert parents(spans) == [
        *(
            ("run", None),
            ("iteration 1", "run"),
            ("rollout", "iteration 1"),
            ("rollout", "rollout"),
            ("act", "rollout"),
        ),
        *(("run", None), ("rollout", "run"), ("rollout", "rollout")),
    ]
    traces = [UUID(int=span.trace_id) for span in sorted(spans, key=lambda span: span.begin)]
    assert traces == [UUID(FLOW_RUN)] * 5 + [UUID(OTHER_FLOW_RUN)] * 3
    ends = {span.name: span.end - 1000 * 10**6 for span in spans if span.attributes.get("embodyflow.unfinished")}
    assert ends == {"run": 50, "iteration 1": 50, "rollout": 50}  # the last that its processes recorded


def test_clocks_of_other_machines_are_those_that_the_flow_measured(tmp_path: Path) -> None:
    flow = (run_of(0, 1000), node(100, 200, "rollout"))
    write_process(tmp_path, "flow", *flow, machine=HERE, offset=5_000_000)
    there = call(5_000_110, 5_000_190, "rollout")
    write_process(tmp_path, "rollout 0", there, machine=THERE, wall_s=1001, started=5_000_005)
    assert parents(RunSpans(tmp_path).read(is_over=True)) == [("run", None), ("rollout", "run"), ("rollout", "rollout")]
