"""How good the policy is now, on goals it was never trained on."""

from pathlib import Path

from prefect.logging import get_run_logger

from embodyflow.data.confidence_intervals import wilson_interval
from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.orchestration.evaluation.contact_sheets import draw_trained_on
from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.process.durable_files import write_atomically
from embodyflow.workers.calls import NodeWork

MODES = ("greedy", "sampled")
NUM_FILMED = 4


async def evaluate(run: Run, index: int) -> dict[str, float]:
    """Evaluate greedily and sampled, and record the rates with their Wilson intervals; show examples in a table."""
    run.folder.write_status("evaluate", index, run.config.iterations)
    reports = [
        await submit_node(NodeWork(f"evaluate_{mode}", "tasks:evaluate_policy", "rollout", index, {"mode": mode}))
        for mode in MODES
    ]
    merged = merge_metrics(report.metrics for report in reports)
    metrics = to_floats(merged)
    for mode in MODES:
        rate = merged[f"eval/{mode}_success_rate"]
        low, high = wilson_interval(round(rate.value * rate.weight), rate.weight)
        metrics |= {f"eval/{mode}_success_low": low, f"eval/{mode}_success_high": high}
    metrics["eval/num_goals"] = merged["eval/greedy_success_rate"].weight
    answered = zip(MODES, reports, strict=True)
    examples = [{"mode": mode, **row} for mode, report in answered for row in report.info["examples"]]
    if examples:
        run.folder.write_examples(index, examples)
        run.artifacts.put_table("examples", examples, f"after iteration {index}")
    run.folder.metrics.append({"iteration": index, **metrics})
    for tracker in run.trackers:
        tracker.log(index, metrics)
    return metrics


async def film(run: Run, index: int) -> None:
    """Record an episode video, and draw episodes that were trained on, where this machine can render.

    The video has its name when all is done; what cannot be rendered leaves a note of the reason in its place.
    """
    path = _video(run, index)
    aside = path.with_name(f".{path.name}")
    config = {"path": str(aside.absolute()), "num_episodes": NUM_FILMED}
    report = await submit_node(NodeWork("record_video", "tasks:record_video", "rollout", index, config))
    await draw_trained_on(run, index)
    if problem := report.info["problem"]:
        get_run_logger().warning("no episode video: %s", problem)
        write_atomically(_note(path), f"{problem}\n")
    else:
        aside.rename(path)


def filmed(run: Run, index: int) -> bool:
    """Say whether :func:`film` has been done, or found that it cannot be: who removes its note has it tried again."""
    path = _video(run, index)
    return path.exists() or _note(path).exists()


def _video(run: Run, index: int) -> Path:
    return run.folder.subfolder("videos") / f"iteration-{index:06d}.gif"


def _note(video: Path) -> Path:
    return video.with_suffix(".txt")
