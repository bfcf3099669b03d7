"""A node that plays its rows part by part, so that other nodes get their turn on the ranks in between."""

import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from embodyflow.data.metrics import mean, merge_metrics
from embodyflow.workers.calls import NodeReport, NodeWork


async def run_in_parts(run_node: Callable[[NodeWork], Coroutine[Any, Any, NodeReport]], work: NodeWork) -> NodeReport:
    """Run a node once for each part, which keeps the part's rows on disk, and then once for the result.

    The function of the node gets the index of the part as ``config["part"]``, and no such entry in the last call. It
    answers a part with the set ``unplayed`` of the ranks that have further ones.

    Args:
        run_node: Runs the node once on its group.
        work: The node.

    Returns:
        The report of the last call, with the metrics of all calls and the sum of their seconds.
    """
    reports: list[NodeReport] = []
    for part in itertools.count():
        reports.append(await run_node(replace(work, config={**work.config, "part": part})))
        if not reports[-1].info["unplayed"]:
            break
    reports.append(await run_node(work))
    seconds = sum(report.seconds for report in reports)
    metrics = merge_metrics(report.metrics for report in reports)
    return replace(reports[-1], metrics=metrics | {f"perf/{work.node_id}_seconds": mean(seconds)}, seconds=seconds)
