"""One RL iteration: the graph's nodes, then the commit; each a task run, or all in one."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.evaluation.kept_episodes import keep_episodes
from embodyflow.orchestration.run.graph_run import GraphRun, RunNode
from embodyflow.orchestration.run.nodes import CURRENT_RUN, Run, run_node_as_event, submit_node
from embodyflow.workers.calls import NodeReport

Digests = Mapping[str, list[str]]


async def run_iteration(run: Run, index: int) -> dict[str, float]:
    """Run an iteration as ``pipeline.task_runs`` says; the numbers are the same. Returns the iteration's metrics."""
    if run.config.pipeline.task_runs == "iteration":
        return await iteration_in_one(index)
    return await run.iterations.run(index)


@flow(name="iteration", persist_result=False, validate_parameters=False)
async def iteration(index: int) -> dict[str, float]:
    """Run the graph once and commit what it learned, as a flow run with a task run for each node.

    Args:
        index: of the iteration, from 1.
    """
    run = CURRENT_RUN.get()
    following = index + 1 + run.turns.max_staleness  # the one that begins when this one is finished
    at_once = following <= run.config.iterations and not run.config.evaluates_after(index)
    if at_once:
        run.iterations.announce(following)
    metrics, digests = await run_nodes(index, submit_node)
    if at_once:
        run.iterations.open(following)
    await commit_run(index, metrics, digests)
    return metrics


@task(name="iteration", task_run_name="iteration-{index}", cache_policy=NO_CACHE, persist_result=False)
async def iteration_in_one(index: int) -> dict[str, float]:
    """Do what :func:`iteration` does as a task run of the training flow, without asking the server for anything."""
    metrics, digests = await run_nodes(index, run_node_as_event)
    await commit(index, metrics, digests)
    return metrics


async def run_nodes(index: int, run_node: RunNode) -> tuple[dict[str, float], Digests]:
    """Run the graph once; return what its nodes measured, and the digests of their rows."""
    run = CURRENT_RUN.get()
    started = time.perf_counter()
    reports = await run_graph(index, run_node)
    await keep_episodes(run, index, reports)
    metrics = to_floats(merge_metrics(report.metrics for report in reports.values()))
    metrics |= {f"perf/{node_id}_seconds": report.seconds for node_id, report in reports.items()}
    metrics |= to_floats(await run.session.buffer_metrics())
    began = max(started, run.turns.finished_at)  # what it shared with the one before is that one's
    metrics["perf/wait_for_rollout_seconds"] = max(run.turns.rolled_out_at[index] - began, 0.0)
    metrics["perf/iteration_seconds"] = time.perf_counter() - began
    return metrics, {node_id: list(report.digests) for node_id, report in reports.items() if report.digests}


async def run_graph(index: int, run_node: RunNode) -> dict[str, NodeReport]:
    """Run the graph once, each node by ``run_node``; return the nodes' reports, by node id."""
    run = CURRENT_RUN.get()
    version = run.session.policy_version
    publish = partial(run.session.publish_weights, version)
    return await GraphRun(run.graph, index, run_node, publish, run.stages.place, run.turns).run()


@task(name="commit", task_run_name="commit", cache_policy=NO_CACHE, persist_result=False)
async def commit_run(index: int, metrics: Mapping[str, float], digests: Digests) -> None:
    """Commit, as a task run."""
    await commit(index, metrics, digests)


async def commit(index: int, metrics: Mapping[str, float], digests: Digests) -> None:
    """Make the iteration count: new weights published, checkpoint and metrics on disk, its rows freed."""
    run = CURRENT_RUN.get()
    await hand_over(index)
    line = {"iteration": index, "weights_digest": run.session.weights_digest, "digests": digests, **metrics}
    # Before the checkpoint counts: a line too many is dropped on resume, a line too few would be lost.
    run.folder.metrics.append(line)
    begin_to_count(index, digests)
    for tracker in run.trackers:
        tracker.log(index, metrics)
    run.folder.write_status("train", index, run.config.iterations)


async def hand_over(index: int) -> None:
    """Publish the trainer's weights as those of the iteration, and write its state to a checkpoint's files.

    The iteration's rows are freed. All of it is asked for together: the workers do one after the other.
    """
    run = CURRENT_RUN.get()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.session.publish_weights(index))
        group.create_task(_save(run, index))
        group.create_task(run.session.free(f"{index}/"))


def begin_to_count(index: int, digests: Digests | None = None) -> None:
    """Begin to make the iteration's checkpoint count: it does as soon as it is on disk.

    Args:
        index: of the iteration.
        digests: of its nodes' rows.
    """
    run = CURRENT_RUN.get()
    facts = {
        "policy_version": index,
        "weights_digest": run.session.weights_digest,
        "digests": dict(digests or {}),
    }
    run.stages.commit(index, facts)


async def _save(run: Run, index: int) -> None:
    await run.stages.settle()  # of the iteration before
    await run.session.save(run.folder.checkpoints.begin(index), whole=index == 0)
