"""What a typical iteration of a run takes, from its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from embodyflow.config import RunConfig
from embodyflow.graph import TaskGraph
from embodyflow.graph.critical_path import critical_path
from embodyflow.graph.node_groups import runs_on
from embodyflow.orchestration.run.iterations.graph_run import rollout_nodes

Records = Sequence[Mapping[str, Any]]

EVALUATIONS = (
    "perf/evaluate_greedy_seconds",
    "perf/evaluate_sampled_seconds",
    "perf/evaluate_returns_seconds",
)
"""Metrics with the time of an evaluation."""


@dataclass(frozen=True)
class IterationTime:
    """Seconds of an iteration: medians over the iterations of a run, without the first if there are more than two.

    Attributes:
        num_iterations: Number of iterations that it is the median of.
        rollout: How long the trainer waited for rows.
        training: How long the nodes after that took.
        commit: How long the commit held up the run.
        evaluation: Evaluations between iterations, as a mean over iterations.
        nodes: Each node, by the slowest rank.
        path: Chain of dependent nodes that takes longest.
        rollout_path: Those of them that need no trainer, on rollout workers.
        trainer_path: Those of them on the trainer.
        idle: Share of the iteration in which ranks of a group had no node; empty for runs of earlier versions.
        micro_batches: Micro-batches of an optimizer step of the policy; 0 for runs of earlier versions.
        slowest_worker: How many times the mean over rollout workers the slowest is at work; 1 if unknown.
    """

    num_iterations: int
    rollout: float
    training: float
    commit: float
    evaluation: float
    nodes: Mapping[str, float]
    path: Sequence[str]
    rollout_path: Sequence[str]
    trainer_path: Sequence[str]
    idle: Mapping[str, float]
    micro_batches: float
    slowest_worker: float

    @property
    def total(self) -> float:
        """All of the iteration."""
        return self.rollout + self.training + self.commit + self.evaluation

    @property
    def rest(self) -> float:
        """Time between nodes: task runs, messages and waits. It is 0 if rollouts overlap with training."""
        return max(self.rollout + self.training - self.seconds_of(self.path), 0.0)

    def seconds_of(self, nodes: Sequence[str]) -> float:
        """Return the time of some nodes, one after the other."""
        return sum(self.nodes.get(node, 0.0) for node in nodes)


def iteration_time(records: Records, graph: TaskGraph, config: RunConfig) -> IterationTime | None:
    """Return the time of an iteration; ``None`` if no iteration is recorded with its time.

    Args:
        records: Lines of ``metrics.jsonl``.
        graph: Graph that an iteration runs.
        config: Configuration of the run.
    """
    timed = [record for record in records if "perf/iteration_seconds" in record]
    kept = timed[1:] if len(timed) > 2 else timed
    if not kept:
        return None
    nodes = {node: _median(kept, f"perf/{node}_seconds") for node in graph.nodes}
    path, free = critical_path(graph, nodes), rollout_nodes(graph)
    rollout = _median(kept, "perf/wait_for_rollout_seconds")
    whole = _median(kept, "perf/iteration_seconds")
    idle = {
        group: _median(kept, f"perf/{group}_idle_share")
        for group in config.groups
        if any(f"perf/{group}_idle_share" in record for record in kept)
    }
    return IterationTime(
        num_iterations=len(kept),
        rollout=rollout,
        training=max(whole - rollout, 0.0),
        commit=_median(kept, "perf/commit_seconds"),
        evaluation=_evaluation(records, config) / len(timed),
        nodes=nodes,
        path=path,
        rollout_path=[node for node in path if node in free],
        trainer_path=[node for node in path if runs_on(graph, node) == "trainer"],
        idle=idle,
        micro_batches=_median(kept, "perf/train_micro_batches") / max(_median(kept, "train/optimizer_steps"), 1.0),
        slowest_worker=_imbalance(nodes, graph, config, idle, whole),
    )


def _median(records: Records, name: str) -> float:
    values = [float(record[name]) for record in records if name in record]
    return median(values) if values else 0.0


def _evaluation(records: Records, config: RunConfig) -> float:
    """Return the seconds that training stood still for evaluations, without the first and the last."""
    last = max(record["iteration"] for record in records)
    lines = [record for record in records if 0 < record["iteration"] < last]
    names = ("perf/wait_for_evaluation_seconds",) if config.has_evaluations_beside else EVALUATIONS
    return sum(float(line.get(name, 0.0)) for line in lines for name in names)


def _imbalance(
    nodes: Mapping[str, float], graph: TaskGraph, config: RunConfig, idle: Mapping[str, float], whole: float
) -> float:
    if config.rollout.max_staleness or "rollout" not in idle:
        return 1.0
    slowest = sum(seconds for node, seconds in nodes.items() if runs_on(graph, node) == "rollout")
    mean = (1.0 - idle["rollout"]) * whole
    return max(slowest / mean, 1.0) if mean > 0 else 1.0
