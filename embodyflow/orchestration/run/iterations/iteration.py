"""One RL iteration: the graph's nodes, then the commit; as one task run per node, or as a single task run."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.evaluation.kept_episodes import keep_episodes
from embodyflow.orchestration.health.alarms import alarm_metrics
from embodyflow.orchestration.run.accounting import used_resources, used_time
from embodyflow.orchestration.run.iterations.graph_run import GraphRun, RunNode
from embodyflow.orchestration.run.iterations.nodes import (
    CURRENT_RUN,
    Run,
    emit_nodes,
    identity,
    run_node_within,
    submit_node,
)
from embodyflow.orchestration.run.stages import UNRESTORABLE
from embodyflow.process.core_time import core_time_so_far
from embodyflow.process.tracing import span
from embodyflow.record.episodes.episode_record import Array, histogram_values
from embodyflow.record.metrics_log import lasting_metrics
from embodyflow.workers.calls import NodeReport, NodeWork

Digests = Mapping[str, list[str]]


async def run_iteration(run: Run, index: int) -> dict[str, float]:
    """Run an iteration and return its metrics. ``pipeline.task_runs`` chooses its form in the UI, not its numbers."""
    if run.config.pipeline.task_runs == "iteration":
        return await iteration_as_task_run(index)
    return await run.iterations.run(index)


@flow(name="iteration", persist_result=False, validate_parameters=False)
async def iteration(index: int) -> dict[str, float]:
    """Run the graph once and commit the result, as a flow run with one task run per node.

    Args:
        index: Index of the iteration, from 1.
    """
    run = CURRENT_RUN.get()
    following = index + 1 + run.turns.max_staleness  # the iteration that starts when this one finishes
    stops = run.config.evaluates_after(index) and not run.config.evaluates_beside(index)
    at_once = following <= run.config.iterations and not stops
    if at_once:
        run.iterations.announce(following)
    metrics, digests = await run_nodes(index, submit_node)
    if at_once:
        run.iterations.open(following)
    await commit_as_task_run(index, metrics, digests)
    return metrics


@task(name="iteration", task_run_name="iteration-{index}", cache_policy=NO_CACHE, persist_result=False)
async def iteration_as_task_run(index: int) -> dict[str, float]:
    """Do the same as :func:`iteration`, as one task run of the training flow and without requests to the server."""
    reports: list[NodeReport] = []

    async def run_node(work: NodeWork, parents: Sequence[NodeReport] = (), *, retries: int = 0) -> NodeReport:
        report = await run_node_within(work, parents, retries=retries)
        reports.append(report)
        return report

    try:
        metrics, digests = await run_nodes(index, run_node, chains=True)
    finally:  # also those before a node that failed
        emit_nodes(index, reports)
    await commit(index, metrics, digests)
    return metrics


async def run_nodes(index: int, run_node: RunNode, *, chains: bool = False) -> tuple[dict[str, float], Digests]:
    """Run the graph once; return its metrics and the digests of its rows, by node id. See :class:`.GraphRun`."""
    run = CURRENT_RUN.get()
    started, core_time = time.perf_counter(), core_time_so_far()
    num_workers = await run.scaling.begin(index)
    reports = await run_graph(index, run_node, chains=chains)
    await keep_episodes(run, index, reports)
    metrics = to_floats(merge_metrics(report.metrics for report in reports.values()))
    metrics |= to_floats(await run.session.buffer_metrics())
    if run.turns.finished_at > started:  # what is in flight with the previous iteration counts for that one
        started, core_time = run.turns.finished_at, run.turns.core_time_at_finish
    ended = time.perf_counter()
    metrics["perf/wait_for_rollout_seconds"] = max(run.turns.rolled_out_at[index] - started, 0.0)
    metrics["perf/iteration_seconds"] = ended - started
    of_flow = core_time_so_far() - core_time
    metrics |= {"perf/flow_cpu_seconds": of_flow.computing, "perf/flow_queued_seconds": of_flow.queued}
    metrics |= used_time(run.graph, reports) | used_resources(reports.values())
    idle = run.session.idle_shares(started, ended)
    metrics |= {f"perf/{group}_idle_share": share for group, share in idle.items()}
    metrics["perf/rollout_workers"] = float(num_workers)
    run.scaling.end(index, metrics)
    return metrics, {node_id: list(report.digests) for node_id, report in reports.items() if report.digests}


async def run_graph(index: int, run_node: RunNode, *, chains: bool = False) -> dict[str, NodeReport]:
    """Run the graph once, each node by ``run_node``; return the nodes' reports, by node id."""
    run = CURRENT_RUN.get()
    version = run.session.policy_version
    publish = partial(run.session.publish_weights, version)
    return await GraphRun(run.graph, index, run_node, publish, run.stages.path, run.turns, chains=chains).run()


@task(name="commit", task_run_name="commit", cache_policy=NO_CACHE, persist_result=False)
async def commit_as_task_run(index: int, metrics: Mapping[str, float], digests: Digests) -> None:
    """Call :func:`commit` as a task run."""
    await commit(index, metrics, digests)


async def commit(index: int, metrics: Mapping[str, float], digests: Digests) -> None:
    """Publish the iteration's weights, write its metrics, free its rows and begin to commit its checkpoint."""
    run = CURRENT_RUN.get()
    run.folder.require_present()
    started = time.perf_counter()
    with span("commit", "node", track="nodes", iteration=index, **identity()):
        await publish(index)
    metrics = {**metrics, **unrestorable_metrics(run), **alarm_metrics(run, index, metrics)}
    metrics["perf/commit_seconds"] = time.perf_counter() - started
    if index in run.config.trainer.profile.iterations:
        get_run_logger().info("profiles of iteration %d: %s", index, run.folder.profiles)
    line = {"iteration": index, "weights_digest": run.session.weights_digest, "digests": digests, **metrics}
    # Before the checkpoint is committed: a resume drops a line too many, but could not restore a missing one.
    run.folder.metrics.append(line)
    values = await _histogram_values(run, index)
    await begin_commit(index, digests, metrics)
    for tracker in run.trackers:
        tracker.log(index, metrics)
        for name, column in values.items():
            tracker.log_histogram(index, name, column)
    run.folder.write_status("train", index, run.config.iterations)


async def _histogram_values(run: Run, index: int) -> dict[str, Array]:
    """Return values of histograms from the episodes that the iteration keeps; empty without trackers or episodes."""
    folder = run.folder.episodes.unfinished(index)
    if not run.trackers or not folder.exists():
        return {}
    return await asyncio.to_thread(histogram_values, folder)


def unrestorable_metrics(run: Run) -> dict[str, float]:
    """Return the number of tasks whose seed does not restore an episode, as a metric; empty without such tasks."""
    count = len(run.folder.unrestorable())
    return {UNRESTORABLE: float(count)} if count else {}


async def publish(index: int) -> None:
    """Publish the trainer's weights as version ``index`` and free the iteration's rows, after all earlier commits."""
    run = CURRENT_RUN.get()
    with span("wait for earlier writes", "wait", track="waits", iteration=index):
        await run.stages.drain()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.session.publish_weights(index))
        group.create_task(run.session.free(f"{index}/"))


async def begin_commit(index: int, digests: Digests | None = None, metrics: Mapping[str, float] | None = None) -> None:
    """Start to write and commit the iteration's checkpoint, or leave the iteration to a later one.

    The commit is valid once its files are on disk. The next rollout does not wait for that; the trainer writes its
    state before it runs another node.

    Args:
        index: Index of the iteration.
        digests: Digests of its nodes' rows.
        metrics: Its metrics; ``None`` for iteration 0, which has none.
    """
    run = CURRENT_RUN.get()
    facts = {
        "policy_version": index,
        "weights_digest": run.session.weights_digest,
        "digests": dict(digests or {}),
        **unrestorable_metrics(run),
    }
    if metrics is not None:
        facts["metrics"] = lasting_metrics(metrics)
    if not run.config.commits_after(index):
        run.stages.postpone(index, facts)
        return
    saving = await run.session.begin_save(run.folder.checkpoints.begin(index), whole=index == 0)
    run.stages.commit(index, facts, saving, is_evaluated=run.config.evaluates_beside(index))
