"""What the iterations of a finished run cost, from its configuration and its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_recorded
from embodyflow.errors import ConfigError
from embodyflow.graph import TaskGraph, load_pipeline
from embodyflow.graph.critical_path import critical_path
from embodyflow.graph.node_groups import runs_on
from embodyflow.orchestration.run.iterations.graph_run import rollout_nodes
from embodyflow.record.metrics_log import records_in
from embodyflow.record.run_folder import RunFolder

Line: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """What a piece of work takes on each of its ranks.

    Attributes:
        seconds: How long it takes with cores to itself, by the slowest rank.
        computing: CPU seconds of one rank, as a mean over ranks; at most those of one core in that time.
    """

    seconds: float = 0.0
    computing: float = 0.0

    def times(self, factor: float) -> "Cost":
        """Return the cost of ``factor`` times the work."""
        return self.scaled(factor, factor)

    def scaled(self, seconds: float, computing: float) -> "Cost":
        """Return the cost with ``seconds`` times the time, at least that of computing, ``computing`` times as much."""
        cpu = self.computing * computing
        return Cost(max(self.seconds * seconds, cpu), cpu)


@dataclass(frozen=True)
class Sample:
    """What one iteration costs.

    Attributes:
        nodes: Costs of its nodes, by id.
        between: Cost of task runs and messages before each node.
        commit: Cost of the commit.
    """

    nodes: Mapping[str, Cost]
    between: Cost = Cost()
    commit: Cost = Cost()


@dataclass(frozen=True)
class RunRecord:
    """A run's iterations and their costs.

    Attributes:
        name: Name of the run.
        config: Its configuration.
        graph: Graph of an iteration.
        samples: Costs of its iterations, without the first one if there are more than two.
        measured: Seconds of the same iterations, with their commits and without evaluations.
        queued: How many of these seconds had no core, by the nodes of the critical path and by the flow.
        bytes_moved: Bytes of rows and weights that workers read and wrote in an iteration, as a median.
        row_length: Environment steps, or response tokens, of a row as a mean; 0 if it is not recorded.
    """

    name: str
    config: RunConfig
    graph: TaskGraph
    samples: Sequence[Sample]
    measured: Sequence[float] = field(default_factory=tuple)
    queued: Sequence[float] = field(default_factory=tuple)
    bytes_moved: float = 0.0
    row_length: float = 0.0


def read_run(folder: RunFolder) -> RunRecord:
    """Return the record of a run.

    Raises:
        ConfigError: It is an evaluation, its iterations are not alike, or it has none with its time.
    """
    name = folder.path.name
    if folder.is_evaluation():
        raise ConfigError(f"{name}: is an evaluation; allowed are training runs")
    config = validate_recorded(folder.config(), name)
    _refuse_uneven(name, config)
    graph = load_pipeline(**config.pipeline.source())
    lines = _timed_lines(folder.metrics.path)
    if not lines:
        raise ConfigError(f"{name}: {folder.metrics.path} has no iteration with its time yet")
    return RunRecord(
        name,
        config,
        graph,
        samples=[_sample(line, graph, config) for line in lines],
        measured=[_seconds(line, "iteration") + _seconds(line, "commit") for line in lines],
        queued=[_queued(line, _path(line, graph, config)) for line in lines],
        bytes_moved=median(line.get("perf/bytes_read", 0.0) + line.get("perf/bytes_written", 0.0) for line in lines),
        row_length=median(line.get("rollout/episode_steps", 0.0) for line in lines),
    )


def _timed_lines(path: Path) -> Sequence[Line]:
    content = path.read_bytes() if path.exists() else b""
    timed = [line for line in records_in(content.split(b"\n")) if "perf/iteration_seconds" in line]
    return timed[1:] if len(timed) > 2 else timed  # the first compiles and fills caches


def _refuse_uneven(name: str, config: RunConfig) -> None:
    """Refuse runs whose record does not say what a rollout of all its rows costs."""
    rollout = config.rollout
    if rollout.mode == "streaming":
        raise ConfigError(f"{name}: has rollout.mode=streaming; allowed are runs with rollout.mode=iterations")
    if rollout.fewest_workers != rollout.most_workers:
        raise ConfigError(f"{name}: has rollout.autoscale; allowed are runs with a fixed number of rollout workers")


def _sample(line: Line, graph: TaskGraph, config: RunConfig) -> Sample:
    shapes = config.groups
    nodes = {node: _cost(line, node, shapes[runs_on(graph, node)].num_ranks) for node in graph.nodes}
    commit = _seconds(line, "commit")  # it waits for disks and messages; its time on cores is not recorded
    return Sample(nodes, _between(line, graph, config), Cost(commit))


def _cost(line: Line, node: str, num_ranks: int) -> Cost:
    """Return the cost of a node: its time less that without a core.

    A run of an earlier version has no CPU time. Its nodes count as computing all the time.
    """
    seconds = _seconds(line, node)
    alone = seconds - _seconds(line, f"{node}_queued")
    computing = line.get(f"perf/{node}_cpu_seconds", seconds * num_ranks) / num_ranks
    return Cost(max(alone, computing, 0.0), computing)


def _between(line: Line, graph: TaskGraph, config: RunConfig) -> Cost:
    """Return the cost before each node: a share of the time in which no node of the critical path runs.

    The flow and its server compute then. With rollouts ahead only the nodes of the trainer are known not to overlap.
    """
    path, whole = _path(line, graph, config), _seconds(line, "iteration")
    if config.rollout.max_staleness:
        whole -= _seconds(line, "wait_for_rollout")
    rest = whole - sum(_seconds(line, node) for node in path) - _seconds(line, "flow_queued")
    each = max(rest, 0.0) / max(len(path), 1)
    return Cost(each, each)


def _path(line: Line, graph: TaskGraph, config: RunConfig) -> list[str]:
    """Return the nodes of the critical path; with rollouts ahead those that do not overlap with other iterations."""
    path = critical_path(graph, {node: _seconds(line, node) for node in graph.nodes})
    ahead = rollout_nodes(graph) if config.rollout.max_staleness else frozenset()
    return [node for node in path if node not in ahead]


def _queued(line: Line, path: Sequence[str]) -> float:
    return sum(_seconds(line, f"{node}_queued") for node in path) + _seconds(line, "flow_queued")


def _seconds(line: Line, what: str) -> float:
    return float(line.get(f"perf/{what}_seconds", 0.0))
