"""Evaluation during training, on goals of the evaluation split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.config import RunConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.confidence_intervals import wilson_interval
from embodyflow.data.metrics import Metric, merge_metrics, to_floats
from embodyflow.orchestration.display.reporting import report_video, video_path
from embodyflow.orchestration.evaluation.contact_sheets import draw_training
from embodyflow.orchestration.evaluation.lanes import Lane
from embodyflow.orchestration.run.iterations.iteration import unrestorable_metrics
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.process.files.durable_files import write_atomically
from embodyflow.workers.calls import NodeReport, NodeWork

MODES = ("greedy", "sampled")
NUM_FILMED = 4


async def evaluate(run: Run, index: int, lane: Lane) -> dict[str, Any]:
    """Evaluate greedily and sampled; return success rates with Wilson intervals, and record examples if there are any.

    Args:
        run: Run that trained the policy.
        index: Index of the iteration that the policy is evaluated after.
        lane: Plays the episodes.
    """
    reports = [
        await lane.play(NodeWork(f"evaluate_{mode}", "tasks:evaluate_policy", "rollout", index, {"mode": mode}))
        for mode in MODES
    ]
    merged = merge_metrics(report.metrics for report in reports)
    metrics: dict[str, Any] = evaluation_metrics(merged)
    answered = zip(MODES, reports, strict=True)
    metrics |= unrestorable_metrics(run)
    solved = _solved_at_reset(run, reports)
    if solved is not None:
        metrics["eval/solved_at_reset"] = float(len(solved))
    examples = [{"mode": mode, **row} for mode, report in answered for row in report.info["examples"]]
    if examples:
        run.folder.write_examples(index, examples)
        run.artifacts.put_table("examples", examples, f"examples after iteration {index}")
    return metrics | ({"solved_at_reset": solved} if solved else {})


def evaluation_metrics(merged: Mapping[str, Metric]) -> dict[str, float]:
    """Return the metrics of an evaluation in both modes, with Wilson intervals of the success rates.

    Args:
        merged: Metrics of the greedy and of the sampled episodes.
    """
    metrics = to_floats(merged)
    for mode in MODES:
        rate = merged[f"eval/{mode}_success_rate"]
        low, high = wilson_interval(round(rate.value * rate.weight), rate.weight)
        metrics |= {f"eval/{mode}_success_low": low, f"eval/{mode}_success_high": high}
    metrics["eval/num_goals"] = merged["eval/greedy_success_rate"].weight
    return metrics


def _solved_at_reset(run: Run, reports: Sequence[NodeReport]) -> list[str] | None:
    """Return the names of goals that were reached before the policy acted; log them. ``None`` for prompts."""
    found = solved_goals(run.config, reports)
    if found is None:
        return None
    names = [f"{task} goal {goal}" for task, goals in found.items() for goal in goals]
    if names:
        get_run_logger().warning("%d goals are solved at reset, without the policy: %s", len(names), ", ".join(names))
    return names


def solved_goals(config: RunConfig, reports: Sequence[NodeReport]) -> dict[str, list[int]] | None:
    """Return the goals that were reached before the policy acted, by task; ``None`` if the job has no goals."""
    if not isinstance(config, EmbodiedConfig):
        return None
    found: dict[str, list[int]] = {}
    pairs: set[tuple[int, int]] = {tuple(pair) for report in reports for pair in report.info.get("solved_at_reset", ())}
    for task, goal in sorted(pairs):
        found.setdefault(config.env.tasks[task], []).append(goal)
    return found


async def film(run: Run, index: int, lane: Lane) -> None:
    """Record a video of episodes and draw training episodes, if this machine can render.

    The video gets its name last, so that its presence means that everything is done. If rendering is not possible, a
    text file with the reason takes its place.
    """
    path = video_path(run, index)
    aside = path.with_name(f".{path.name}")
    config = {"path": str(aside.absolute()), "num_episodes": NUM_FILMED}
    report = await lane.run(NodeWork("record_video", "tasks:record_video", "rollout", index, config))
    await draw_training(run, index, lane)
    if problem := report.info["problem"]:
        get_run_logger().warning("no episode video: %s", problem)
        write_atomically(_reason_path(path), f"{problem}\n")
    else:
        aside.rename(path)
        report_video(run, index)
        for tracker in run.trackers:
            tracker.log_video(index, "eval/episodes", path)


def is_filmed(run: Run, index: int) -> bool:
    """Return True if :func:`film` has recorded a video or a reason why not. Remove the reason's file to retry."""
    path = video_path(run, index)
    return path.exists() or _reason_path(path).exists()


def _reason_path(video: Path) -> Path:
    return video.with_suffix(".txt")
