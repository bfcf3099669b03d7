"""Evaluation of control jobs: returns of the deterministic policy on episodes that training never plays."""

import math
from collections.abc import Mapping
from typing import Any

from embodyflow.data.confidence_intervals import mean_interval, wilson_interval
from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.evaluation.evaluation_request import EvaluatedPolicy
from embodyflow.orchestration.evaluation.lanes import InTurn, Lane
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.workers.calls import NodeWork

SUCCESS = "eval/greedy_success_rate"
"""Metric of an environment whose info has ``is_success``."""


async def evaluate_returns(run: Run, index: int, lane: Lane) -> dict[str, float]:
    """Play the evaluation episodes; return the metrics of their returns, with Student's 95 % interval of the mean.

    Args:
        run: Run that trained the policy.
        index: Index of the iteration that the policy is evaluated after.
        lane: Plays the episodes.
    """
    del run
    report = await lane.play(NodeWork("evaluate_returns", "tasks:evaluate_returns", "rollout", index, {}))
    merged = merge_metrics([report.metrics])
    mean, square = merged["eval/return"].value, merged.pop("eval/squared_return").value
    count = round(merged["eval/return"].weight)
    deviation = math.sqrt(max(0.0, square - mean * mean) * count / (count - 1))
    low, high = mean_interval(mean, deviation, count)
    metrics = to_floats(merged) | {"eval/return_low": low, "eval/return_high": high, "eval/return_std": deviation}
    metrics["eval/num_episodes"] = count
    if SUCCESS in metrics:
        metrics["eval/greedy_success_low"], metrics["eval/greedy_success_high"] = wilson_interval(
            round(metrics[SUCCESS] * count), count
        )
    return metrics


async def evaluate_policy(run: Run, policy: EvaluatedPolicy) -> dict[str, Any]:
    """Play the evaluation episodes; return their part of ``evaluation.json``."""
    metrics = await evaluate_returns(run, policy.iteration or 0, InTurn())
    found = {name: metrics[f"eval/return_{name}"] for name in ("low", "high", "std")}
    played = {"episodes": metrics["eval/num_episodes"], "mean_steps": metrics["eval/episode_steps"]}
    result = {"return": {"mean": metrics["eval/return"], **found, **played}}
    return result | ({"mean_success_rate": {"greedy": metrics[SUCCESS]}} if SUCCESS in metrics else {})


def return_lines(result: Mapping[str, Any]) -> list[str]:
    """Format the returns of an evaluation for a terminal."""
    found = result["return"]
    lines = [
        f"return {found['mean']:.4g} [{found['low']:.4g}, {found['high']:.4g}] over {found['episodes']} episodes of "
        f"{found['mean_steps']:.0f} steps"
    ]
    if "mean_success_rate" in result:
        lines.append(f"success rate {result['mean_success_rate']['greedy']:.3f}")
    return lines
