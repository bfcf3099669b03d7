"""The record of an iteration's episodes: observations, actions, rewards and advantages."""

import asyncio
from collections.abc import Mapping

from prefect.logging import get_run_logger

from embodyflow.errors import ShardLostError
from embodyflow.graph.node_groups import group_of
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.workers.calls import NodeReport, NodeWork


async def keep_episodes(run: Run, index: int, reports: Mapping[str, NodeReport]) -> None:
    """Make the workers write an iteration's episodes to the run's folder. They become valid with its commit.

    Args:
        run: Run that played the episodes.
        index: Index of the iteration.
        reports: Reports of its nodes, whose rows are in the buffers.
    """
    order = [node_id for node_id in run.graph.get_execution_order() if reports[node_id].shards]
    played = [node_id for node_id in order if group_of(run.graph.nodes[node_id]) == "rollout"]
    if run.config.kept_iterations == 0 or not played:
        return
    folder = str(run.folder.episodes.begin(index).absolute())

    async def keep(node_id: str, trained: bool) -> None:
        config = {"folder": folder, "part": "trained" if trained else f"played-{node_id}", "trained": trained}
        work = NodeWork("keep_episodes", "tasks:keep_episodes", None, index, config, needs_model=False)
        await run.session.run_node(work, [reports[node_id]])

    parts = (*(keep(node_id, trained=False) for node_id in played), keep(order[-1], trained=True))
    # Wait for all parts: one that is still being written would survive the removal below.
    errors = [error for error in await asyncio.gather(*parts, return_exceptions=True) if error is not None]
    for error in errors:
        if not isinstance(error, ShardLostError):
            raise error
    if errors:  # training no longer needs the rows, so they are not replayed for the record
        get_run_logger().warning("the episodes of iteration %d are not kept: %s", index, errors[0])
        run.folder.episodes.discard(index)
