"""What an iteration took: time on its critical path, bytes moved and memory."""

from collections.abc import Collection, Mapping

from embodyflow.graph import TaskGraph
from embodyflow.graph.critical_path import critical_path
from embodyflow.workers.calls import NodeReport, Usage


def used_time(graph: TaskGraph, reports: Mapping[str, NodeReport]) -> dict[str, float]:
    """Return the seconds of each node, on cores and waiting for one, and of the critical path, as ``perf/`` metrics."""
    seconds = {node_id: report.seconds for node_id, report in reports.items()}
    longest = sum(seconds[node_id] for node_id in critical_path(graph, seconds))
    times = {f"perf/{node_id}_seconds": value for node_id, value in seconds.items()}
    for node_id, report in reports.items():
        times[f"perf/{node_id}_cpu_seconds"] = report.core_time.computing
        times[f"perf/{node_id}_queued_seconds"] = report.core_time.queued
    return times | {"perf/critical_path_seconds": longest}


def used_resources(reports: Collection[NodeReport]) -> dict[str, float]:
    """Return the bytes that moved and the peak memory of each group, as ``perf/`` metrics."""
    total = sum((report.usage for report in reports), Usage())
    metrics = {"perf/bytes_read": float(total.bytes_read), "perf/bytes_written": float(total.bytes_written)}
    for group in {report.group for report in reports}:
        usage = sum((report.usage for report in reports if report.group == group), Usage())
        metrics[f"perf/{group}_peak_memory_bytes"] = float(usage.peak_bytes)
        if usage.peak_device_bytes:
            metrics[f"perf/{group}_peak_device_memory_bytes"] = float(usage.peak_device_bytes)
    return metrics
