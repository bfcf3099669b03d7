"""What the iterations of a finished run cost, from its configuration and its metrics."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_recorded
from embodyflow.errors import ConfigError
from embodyflow.forecast.machine import NO_LIMIT, Machine
from embodyflow.graph import TaskGraph, load_pipeline
from embodyflow.graph.critical_path import critical_path
from embodyflow.graph.node_groups import group_of, runs_on
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
        checkpoint: Cost of the checkpoint for each trainer rank, which they write beside the next rollout.
    """

    nodes: Mapping[str, Cost]
    between: Cost = Cost()
    commit: Cost = Cost()
    checkpoint: Cost = Cost()


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
        machine: The machine that it ran on.
    """

    name: str
    config: RunConfig
    graph: TaskGraph
    samples: Sequence[Sample]
    measured: Sequence[float] = field(default_factory=tuple)
    queued: Sequence[float] = field(default_factory=tuple)
    bytes_moved: float = 0.0
    row_length: float = 0.0
    machine: Machine = NO_LIMIT


@dataclass(frozen=True)
class _Log:
    """What the folder of a run has: its configuration, the graph of an iteration, and the metrics of iterations."""

    name: str
    config: RunConfig
    graph: TaskGraph
    lines: Sequence[Line]


def read_run(folder: RunFolder, machine: Machine = NO_LIMIT) -> RunRecord:
    """Return the record of one run, see :func:`read_runs`."""
    return read_runs([folder], machine)[0]


def read_runs(folders: Sequence[RunFolder], machine: Machine = NO_LIMIT) -> list[RunRecord]:
    """Return the records of runs on machines of the same kind. What one of them tells about services counts for all.

    Args:
        folders: Folders of the runs.
        machine: Machine that each of them ran on, whose services the runs tell.

    Raises:
        ConfigError: One is an evaluation, its iterations are not alike, or it has none with its time.
    """
    logs = [_read(folder) for folder in folders]
    told = defaultdict[tuple[int, int], list[float]](list)  # by workers and ranks
    for log in logs:
        shape = log.config.rollout.num_workers, log.config.trainer.num_ranks
        told[shape] += [_services(line, log, machine.cores) for line in log.lines]
    known = replace(machine, services=max(map(median, told.values())))
    return [_record(log, known) for log in logs]


def _read(folder: RunFolder) -> _Log:
    name = folder.path.name
    if folder.is_evaluation():
        raise ConfigError(f"{name}: is an evaluation; allowed are training runs")
    config = validate_recorded(folder.config(), name)
    _refuse_uneven(name, config)
    graph = load_pipeline(**config.pipeline.source())
    lines = _timed_lines(folder.metrics.path)
    if not lines:
        raise ConfigError(f"{name}: {folder.metrics.path} has no iteration with its time yet")
    return _Log(name, config, graph, lines)


def _record(log: _Log, machine: Machine) -> RunRecord:
    graph, config, lines = log.graph, log.config, log.lines
    return RunRecord(
        log.name,
        config,
        graph,
        samples=[_sample(line, log, machine) for line in lines],
        measured=[_seconds(line, "iteration") + _seconds(line, "commit") for line in lines],
        queued=[_queued(line, _path(line, graph, config)) for line in lines],
        bytes_moved=median(line.get("perf/bytes_read", 0.0) + line.get("perf/bytes_written", 0.0) for line in lines),
        row_length=median(line.get("rollout/episode_steps", 0.0) for line in lines),
        machine=machine,
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


def _sample(line: Line, log: _Log, machine: Machine) -> Sample:
    nodes = {node: _cost(line, log, node, machine) for node in log.graph.nodes}
    commit = _seconds(line, "commit")  # it waits for disks and messages; its time on cores is not recorded
    return Sample(nodes, _between(line, log.graph, log.config), Cost(commit), _checkpoint(line, log, machine.left))


def _cost(line: Line, log: _Log, node: str, machine: Machine) -> Cost:
    """Return the cost of a node with cores to itself, without its time in the queue and what sharing cores cost it.

    Of ranks in lockstep on too few cores, each waits while the others compute, whether it has a core or not. A run of
    an earlier version has no CPU time. Its nodes count as computing all the time.
    """
    num_ranks = log.config.groups[runs_on(log.graph, node)].num_ranks
    seconds, queued = _seconds(line, node), _seconds(line, f"{node}_queued")
    computing = line.get(f"perf/{node}_cpu_seconds", seconds * num_ranks) / num_ranks
    if group_of(log.graph.nodes[node]) == "trainer":
        queued = max(queued, (num_ranks / machine.left - 1) * computing)
    alone = computing / machine.dilation(_num_computing(log, num_ranks) + machine.services)
    return Cost(max(seconds - queued - (computing - alone), alone, 0.0), alone)


def _num_computing(log: _Log, num_ranks: int) -> int:
    """Return how many processes compute while a node runs: its ranks, and with rollouts ahead all workers and ranks."""
    config = log.config
    return config.rollout.num_workers + config.trainer.num_ranks if config.rollout.max_staleness else num_ranks


def _services(line: Line, log: _Log, cores: float) -> float:
    """Return the cores that other work had while trainer ranks filled them; 0 if nobody knows.

    With rollouts ahead, or more cores than ranks, the others have cores of their own.
    """
    nodes = [node for node in log.graph.nodes if group_of(log.graph.nodes[node]) == "trainer"]
    seconds, computing = _on_full_cores(line, log, nodes, log.config.trainer.num_ranks, cores)
    return max(cores - computing / seconds, 0.0) if seconds else 0.0


def _checkpoint(line: Line, log: _Log, cores: float) -> Cost:
    """Return the checkpoint of each rank: what it took from rollouts that filled the cores which services leave."""
    nodes = sorted(rollout_nodes(log.graph))
    seconds, computing = _on_full_cores(line, log, nodes, log.config.rollout.num_workers, cores)
    each = max(cores * seconds - computing, 0.0) / log.config.trainer.num_ranks if seconds else 0.0
    return Cost(each, each)


def _on_full_cores(line: Line, log: _Log, nodes: Sequence[str], num_ranks: int, cores: float) -> tuple[float, float]:
    """Return the seconds in which the ranks of nodes had cores or waited for one, and the CPU seconds of all of them.

    Both are 0 if the ranks left cores to other work.
    """
    if num_ranks < cores or log.config.rollout.max_staleness:
        return 0.0, 0.0
    computing = sum(line.get(f"perf/{node}_cpu_seconds", 0.0) for node in nodes)
    return computing / num_ranks + sum(_seconds(line, f"{node}_queued") for node in nodes), computing


def _between(line: Line, graph: TaskGraph, config: RunConfig) -> Cost:
    """Return the cost before each node: a share of the time in which no node of the critical path runs.

    The flow and its server compute then, and wait for each other. With rollouts ahead only the nodes of the trainer are
    known not to overlap.
    """
    path, whole = _path(line, graph, config), _seconds(line, "iteration")
    if config.rollout.max_staleness:
        whole -= _seconds(line, "wait_for_rollout") + _seconds(line, "flow_queued")
    rest = whole - sum(_seconds(line, node) for node in path)
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
