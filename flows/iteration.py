"""One RL iteration: the graph's nodes as task runs, then the commit."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.workers.session import NodeReport, NodeWork
from flows.evaluation import evaluation_is_due
from flows.nodes import CURRENT_RUN, run_node_as_event, submit_node
from pipelines import Node, NodeRole, TaskGraph


def group_of(node: Node) -> str | None:
    """Return the worker group that has the node's model; ``None`` for a node without, which runs where its rows are."""
    if not node.node_type.is_model:
        return None
    return "rollout" if node.node_role is NodeRole.ROLLOUT else "trainer"


RunNode = Callable[..., Coroutine[Any, Any, NodeReport]]


async def run_graph(graph: TaskGraph, iteration: int, run_node: RunNode) -> dict[str, NodeReport]:
    """Run every node as soon as its parents are done; independent branches run at the same time.

    Args:
        graph: the nodes.
        iteration: index of the iteration.
        run_node: runs one, given its work, its parents' reports and ``retries``.

    Returns:
        The nodes' reports, by node id.
    """
    running: dict[str, asyncio.Task[NodeReport]] = {}

    async def run_after_parents(node: Node) -> NodeReport:
        parents = [await running[parent] for parent in node.dependencies]
        work = NodeWork(
            node_id=node.node_id,
            function=node.executable_ref,
            group=group_of(node),
            iteration=iteration,
            config=node.config,
            needs_model=node.node_type.is_model,
            only_forward_compute=node.only_forward_compute,
            timeout=node.timeout_seconds,
        )
        return await run_node(work, parents, retries=node.retries)

    async with asyncio.TaskGroup() as group:
        for node_id in graph.get_execution_order():
            running[node_id] = group.create_task(run_after_parents(graph.nodes[node_id]))
    return {node_id: running[node_id].result() for node_id in running}


@flow(name="iteration", persist_result=False, validate_parameters=False)
async def iteration(index: int) -> dict[str, float]:
    """Run the graph once and commit what it learned; returns the iteration's metrics.

    Args:
        index: of the iteration, from 1.
    """
    run = CURRENT_RUN.get()
    started = time.perf_counter()
    if run.config.pipeline.task_runs == "node":
        reports = await run_graph(run.graph, index, submit_node)
    else:
        reports = await all_nodes(index)
    if index < run.config.iterations and not evaluation_is_due(run.config, index):
        run.iterations.open(index + 1)
    metrics = to_floats(merge_metrics(report.metrics for report in reports.values()))
    metrics |= {f"perf/{node_id}_seconds": report.seconds for node_id, report in reports.items()}
    metrics["perf/iteration_seconds"] = time.perf_counter() - started
    digests = {node_id: list(report.digests) for node_id, report in reports.items() if report.digests}
    await commit(index, metrics, digests)
    return metrics


@task(name="nodes", task_run_name="nodes", cache_policy=NO_CACHE, persist_result=False)
async def all_nodes(index: int) -> dict[str, NodeReport]:
    """Run the whole graph as one task run; the numbers are the same."""
    return await run_graph(CURRENT_RUN.get().graph, index, run_node_as_event)


@task(name="commit", task_run_name="commit", cache_policy=NO_CACHE, persist_result=False)
async def commit(index: int, metrics: Mapping[str, float], digests: Mapping[str, list[str]]) -> None:
    """Make the iteration count: new weights published, checkpoint and metrics on disk, its rows freed."""
    run = CURRENT_RUN.get()
    digest = await run.session.publish_weights(index)
    # Before the checkpoint: a line too many is dropped on resume, a line too few would be lost.
    run.folder.append_metrics({"iteration": index, "weights_digest": digest, "digests": digests, **metrics})
    await write_checkpoint(index)
    for tracker in run.trackers:
        tracker.log(index, metrics)
    await run.session.free(f"{index}/")
    run.folder.write_status("train", index, run.config.iterations)


async def write_checkpoint(index: int) -> None:
    """Write the published weights and the optimizer to the iteration's checkpoint: from then on it is committed."""
    run = CURRENT_RUN.get()
    await run.session.save(run.folder.new_checkpoint(index))
    facts = {"iteration": index, "policy_version": index, "weights_digest": run.session.weights_digest}
    run.folder.commit_checkpoint(index, facts, run.config.trainer.keep_checkpoints)
