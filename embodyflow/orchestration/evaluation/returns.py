"""Evaluation of control jobs: returns of the deterministic policy on episodes that training never plays."""

import math

from embodyflow.data.confidence_intervals import mean_interval
from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.workers.calls import NodeWork


async def evaluate_returns(run: Run, index: int) -> dict[str, float]:
    """Play the evaluation episodes; record the mean return with Student's 95 % interval."""
    run.folder.write_status("evaluate", index, run.config.iterations)
    report = await submit_node(NodeWork("evaluate_returns", "tasks:evaluate_returns", "rollout", index, {}))
    merged = merge_metrics([report.metrics])
    mean, square = merged["eval/return"].value, merged.pop("eval/squared_return").value
    count = round(merged["eval/return"].weight)
    deviation = math.sqrt(max(0.0, square - mean * mean) * count / (count - 1))
    low, high = mean_interval(mean, deviation, count)
    metrics = to_floats(merged) | {"eval/return_low": low, "eval/return_high": high, "eval/return_std": deviation}
    metrics["eval/num_episodes"] = count
    run.folder.metrics.append({"iteration": index, **metrics})
    for tracker in run.trackers:
        tracker.log(index, metrics)
    return metrics
