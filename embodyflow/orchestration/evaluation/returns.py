"""Evaluation of control jobs: returns of the deterministic policy on episodes that training never plays."""

import math
from collections.abc import Mapping
from typing import Any

from embodyflow.data.confidence_intervals import mean_interval
from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.evaluation.evaluation_request import EvaluatedPolicy
from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.workers.calls import NodeWork


async def evaluate_returns(run: Run, index: int) -> dict[str, float]:
    """Play the evaluation episodes; record the mean return with Student's 95 % interval."""
    run.folder.write_status("evaluate", index, run.config.iterations)
    metrics = await _play(run, index)
    run.folder.metrics.append({"iteration": index, **metrics})
    for tracker in run.trackers:
        tracker.log(index, metrics)
    return metrics


async def evaluate_policy(run: Run, policy: EvaluatedPolicy) -> dict[str, Any]:
    """Play the evaluation episodes; return their part of ``evaluation.json``."""
    metrics = await _play(run, policy.iteration or 0)
    found = {name: metrics[f"eval/return_{name}"] for name in ("low", "high", "std")}
    played = {"episodes": metrics["eval/num_episodes"], "mean_steps": metrics["eval/episode_steps"]}
    return {"return": {"mean": metrics["eval/return"], **found, **played}}


def return_lines(result: Mapping[str, Any]) -> list[str]:
    """Format the returns of an evaluation for a terminal."""
    found = result["return"]
    return [
        f"return {found['mean']:.4g} [{found['low']:.4g}, {found['high']:.4g}] over {found['episodes']} episodes of "
        f"{found['mean_steps']:.0f} steps"
    ]


async def _play(run: Run, index: int) -> dict[str, float]:
    """Play the evaluation episodes with the published weights; return the metrics of their returns."""
    report = await submit_node(NodeWork("evaluate_returns", "tasks:evaluate_returns", "rollout", index, {}))
    merged = merge_metrics([report.metrics])
    mean, square = merged["eval/return"].value, merged.pop("eval/squared_return").value
    count = round(merged["eval/return"].weight)
    deviation = math.sqrt(max(0.0, square - mean * mean) * count / (count - 1))
    low, high = mean_interval(mean, deviation, count)
    metrics = to_floats(merged) | {"eval/return_low": low, "eval/return_high": high, "eval/return_std": deviation}
    metrics["eval/num_episodes"] = count
    return metrics
