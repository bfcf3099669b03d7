"""A node of the graph as a Prefect task."""

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
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.turns import Turns
from embodyflow.orchestration.server.artifacts import Artifacts
from embodyflow.orchestration.server.iteration_runs import IterationRuns
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trackers import Tracker
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.session import Session


@dataclass(frozen=True)
class Run:
    """What the flows of one run share in this process; it never becomes a Prefect parameter.

    Attributes:
        session: the run's worker groups.
        folder: the run's folder.
        trackers: the run's metric sinks.
        graph: what an iteration runs.
        iterations: their flow runs.
        stages: rows kept on disk.
        artifacts: what the Prefect UI shows of it.
        turns: when iterations that are under way at the same time go on.
    """

    session: Session
    folder: RunFolder
    trackers: Sequence[Tracker]
    graph: TaskGraph
    iterations: IterationRuns
    stages: Stages
    artifacts: Artifacts
    turns: Turns

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.session.config


CURRENT_RUN: ContextVar[Run] = ContextVar("current_run")


def _says_something(record: logging.LogRecord) -> bool:
    """Leave out that a task run is completed: its state tells it, and a node's last line how it went."""
    return record.msg != "Finished in state Completed()"


logging.getLogger("prefect.task_runs").addFilter(_says_something)


# Inputs are not a key to what a node does: the weights it acts with are not among them. So nothing is cached here.
@task(name="node", cache_policy=NO_CACHE, persist_result=False)
async def run_node(work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport:
    """Run a node on its worker group; show its logs and numbers in this task run."""
    logger = get_run_logger()
    report = await _run_or_recall(work, parents)
    for line in report.logs:
        logger.log(line.level, line.message)
    numbers = " ".join(f"{name}={value:.4g}" for name, value in to_floats(report.metrics).items())
    logger.info("%s on %s: %d rows in %.2f s %s", work.node_id, report.group, report.num_rows, report.seconds, numbers)
    return report


async def _run_or_recall(work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport:
    """Run a node, unless its rows are on disk from an earlier time."""
    run = CURRENT_RUN.get()
    kept = await run.stages.recall(run.session, work)
    if kept is not None:
        get_run_logger().info("%s was done before: %d rows read from disk", work.node_id, kept.num_rows)
        return kept
    report = await run.session.run_node(work, parents)
    if work.stage is not None and report.shards:  # it may pass no rows on
        run.stages.keep(work, report)
    return report


async def run_node_as_event(work: NodeWork, parents: Sequence[NodeReport] = (), *, retries: int = 0) -> NodeReport:
    """Run a node within the present task run; an event of the flow run tells its numbers and its time."""
    for attempt in range(retries + 1):
        try:
            report = await _run_or_recall(work, parents)
            break
        except Exception:
            if attempt == retries:
                raise
            get_run_logger().warning("%s failed and is run again", work.node_id, exc_info=True)
    logger = get_run_logger()
    for line in report.logs:
        logger.log(line.level, "%s: %s", work.node_id, line.message)
    context = TaskRunContext.get()
    assert context is not None, "events belong to the task run that all nodes run in"
    emit_event(
        event="embodyflow.node.completed",
        resource={
            "prefect.resource.id": f"embodyflow.node.{work.iteration}.{work.node_id}",
            "prefect.resource.name": work.node_id,
        },
        related=[
            {"prefect.resource.id": f"prefect.task-run.{context.task_run.id}", "prefect.resource.role": "task-run"}
        ],
        payload={
            "group": report.group,
            "num_rows": report.num_rows,
            "seconds": report.seconds,
            "metrics": to_floats(report.metrics),
        },
    )
    return report


async def submit_node(work: NodeWork, parents: Sequence[NodeReport] = (), *, retries: int = 0) -> NodeReport:
    """Run a node as a Prefect task run of its name."""
    # Opaque: Prefect finds the task run that each report is from, and does not walk through its every metric.
    return await _named_task(work.node_id, retries)(opaque(work), [opaque(parent) for parent in parents])


@lru_cache
def _named_task(name: str, retries: int) -> Callable[..., Coroutine[Any, Any, NodeReport]]:
    return run_node.with_options(name=name, task_run_name=name, retries=retries)
