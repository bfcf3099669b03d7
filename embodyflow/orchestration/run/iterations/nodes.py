"""The nodes of a graph as Prefect task runs, and the state that a run's flows share."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.utilities.annotations import opaque

from embodyflow.config import RunConfig
from embodyflow.data.metrics import to_floats
from embodyflow.graph import TaskGraph
from embodyflow.orchestration.display.artifacts import Artifacts
from embodyflow.orchestration.run.evaluations import Evaluations
from embodyflow.orchestration.run.iterations.parts import run_in_parts
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.orchestration.run.scaling.scaling import Scaling
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.streaming.rollouts import Rollouts
from embodyflow.orchestration.server.iteration_runs import IterationRuns
from embodyflow.process.tracing import span
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trackers import Tracker
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.ray_nodes import ClusterWatch
from embodyflow.workers.session import Session


@dataclass(frozen=True)
class Run:
    """The state that the flows of one run share in this process. It is never passed as a Prefect parameter.

    Attributes:
        session: Worker groups.
        folder: Folder on disk.
        trackers: Metric sinks.
        graph: Graph that an iteration runs.
        iterations: Flow runs of the iterations.
        stages: Rows and commits on their way to disk.
        artifacts: Artifacts in the Prefect UI.
        turns: Order of the iterations in flight.
        rollouts: Source of the iterations' rollouts.
        evaluations: Evaluations of the versions that are due.
        scaling: Number of rollout workers of each iteration.
        cluster: Watch on the Ray cluster.
    """

    session: Session
    folder: RunFolder
    trackers: Sequence[Tracker]
    graph: TaskGraph
    iterations: IterationRuns
    stages: Stages
    artifacts: Artifacts
    turns: Turns
    rollouts: Rollouts
    evaluations: "Evaluations[Run]"
    scaling: Scaling
    cluster: ClusterWatch

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.session.config


CURRENT_RUN: ContextVar[Run] = ContextVar("current_run")


def _is_informative(record: logging.LogRecord) -> bool:
    """Return False for Prefect's line about a completed task run, which its state already shows."""
    return record.msg != "Finished in state Completed()"


logging.getLogger("prefect.task_runs").addFilter(_is_informative)


# No caching: a node's result also depends on the weights, which are not among its inputs.
@task(name="node", cache_policy=NO_CACHE, persist_result=False)
async def run_node(work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport:
    """Run a node on its worker group; log its lines and metrics in this task run."""
    logger = get_run_logger()
    report = await _run_or_recall(work, parents)
    for line in report.logs:
        logger.log(line.level, line.message)
    # Work without rows and metrics, such as a film, shows its time in the UI; counters of faults are mostly 0.
    shown = {name: v for name, v in to_floats(report.metrics).items() if v != 0 or not name.startswith("perf/")}
    level = logging.INFO if report.num_rows or shown else logging.DEBUG
    rows = f"{report.num_rows} rows in " if report.num_rows else ""
    numbers = " ".join(f"{name}={value:.4g}" for name, value in shown.items())
    logger.log(level, "%s on %s: %s%.2f s %s", work.node_id, report.group, rows, report.seconds, numbers)
    return report


async def _run_or_recall(work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport:
    """Run a node, or read its rows from disk if an earlier process kept them."""
    with span(work.node_id, "node", track="nodes", iteration=work.iteration, **identity()) as node:
        report = await _report_of(work, parents)
        node.note(rows=report.num_rows, seconds=report.seconds)
    return report


def identity() -> dict[str, str]:
    """Return the run, and the task run that this is in, for the trace."""
    context = TaskRunContext.get()
    run = {"run": str(CURRENT_RUN.get().config.run_id)}
    return run if context is None else run | {"task_run": str(context.task_run.id)}


async def _report_of(work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport:
    run = CURRENT_RUN.get()
    kept = await run.stages.recall(run.session, work)
    if kept is not None:
        get_run_logger().info("%s was done before: %d rows read from disk", work.node_id, kept.num_rows)
        return kept
    if work.in_parts:
        return await run_in_parts(run.rollouts.run_node, work)
    report = await run.rollouts.run_node(work, parents)
    if work.stage is not None and report.shards:  # some nodes pass no rows on
        _keep(run, work, report)
    return report


def _keep(run: Run, work: NodeWork, report: NodeReport) -> None:
    """Start to put on disk what a later process needs of a node's rows."""
    if run.config.commits_after(work.iteration - 1):
        run.stages.keep(work, report)
    elif run.config.commits_after(work.iteration):  # a repetition would begin before this iteration, or after it
        run.stages.keep_surplus(work)


async def run_node_within(work: NodeWork, parents: Sequence[NodeReport] = (), *, retries: int = 0) -> NodeReport:
    """Run a node within the current task run, which logs its lines."""
    for attempt in range(retries + 1):
        try:
            report = await _run_or_recall(work, parents)
            break
        except Exception:
            if attempt == retries:
                raise
            get_run_logger().warning("%s failed and is retried", work.node_id, exc_info=True)
    logger = get_run_logger()
    for line in report.logs:
        logger.log(line.level, "%s: %s", work.node_id, line.message)
    return report


def emit_nodes(iteration: int, reports: Sequence[NodeReport]) -> None:
    """Emit an event of the current task run with the metrics and seconds of the nodes that it has run, in this order.

    One event for all of them: the server takes longer for an event than a short node takes.
    """
    context = TaskRunContext.get()
    assert context is not None, "nodes run within the task run of their iteration"
    emit_event(
        event="embodyflow.nodes.completed",
        resource={
            "prefect.resource.id": f"embodyflow.iteration.{CURRENT_RUN.get().config.run_id}.{iteration}",
            "prefect.resource.name": f"iteration-{iteration}",
        },
        related=[
            {"prefect.resource.id": f"prefect.task-run.{context.task_run.id}", "prefect.resource.role": "task-run"}
        ],
        payload={
            "nodes": [
                {
                    "node": report.node_id,
                    "group": report.group,
                    "num_rows": report.num_rows,
                    "seconds": report.seconds,
                    "metrics": to_floats(report.metrics),
                }
                for report in reports
            ]
        },
    )


async def submit_node(work: NodeWork, parents: Sequence[NodeReport] = (), *, retries: int = 0) -> NodeReport:
    """Run a node as a Prefect task run with its name."""
    # Opaque: Prefect links each report to its task run without traversing all of its metrics.
    return await _named_task(work.node_id, retries)(opaque(work), [opaque(parent) for parent in parents])


@lru_cache
def _named_task(name: str, retries: int) -> Callable[..., Coroutine[Any, Any, NodeReport]]:
    return run_node.with_options(name=name, task_run_name=name, retries=retries)
