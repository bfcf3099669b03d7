"""What people look at in the Prefect UI: progress, numbers, the learning curve."""

import asyncio
import base64
import io
import re
import time
from typing import Any, cast
from uuid import UUID

import matplotlib
from prefect.artifacts import (
    acreate_image_artifact,
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)

from flows.nodes import Run

matplotlib.use("Agg")
from matplotlib.figure import Figure

SHOWN = (
    "rollout/success_rate",
    "rollout/reward",
    "groups/mixed_fraction",
    "policy/kl_to_reference",
    "policy/entropy",
    "perf/env_steps_per_second",
    "perf/iteration_seconds",
)
NUM_CURVES = 10
"""Pictures of the learning curve in a run: enough to watch, few enough for the database."""

REFRESH_SECONDS = 1.0
"""Progress and table are renewed at most that often: faster than that, nobody reads and the server has work."""


def artifact_key(run: Run, name: str) -> str:
    """Return an artifact key: Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run.config.run_id}-{name}".lower()).strip("-")


async def run_started(run: Run) -> None:
    """Create the progress bar and the link to the run's folder."""
    run.progress_id = await acreate_progress_artifact(
        0.0, key=artifact_key(run, "progress"), description=f"{run.config.iterations} iterations"
    )
    folder = run.folder.path.absolute()
    await acreate_link_artifact(folder.as_uri(), key=artifact_key(run, "folder"), link_text=str(run.folder.path))


async def iteration_done(run: Run, index: int) -> None:
    """Move the progress bar, renew the table and, now and then, the curve."""
    iterations = run.config.iterations
    if index == iterations or time.monotonic() - run.shown_at >= REFRESH_SECONDS:
        await aupdate_progress_artifact(cast(UUID, run.progress_id), 100.0 * index / iterations)
        records = [record for record in run.folder.metrics() if "rollout/num_episodes" in record]
        table = [{"iteration": r["iteration"], **{name: _short(r.get(name)) for name in SHOWN}} for r in records[-20:]]
        await acreate_table_artifact(table, key=artifact_key(run, "metrics"), description="latest iterations")
        run.shown_at = time.monotonic()
    if index < iterations and index % max(1, iterations // NUM_CURVES) == 0:  # run_finished draws the last one
        await learning_curve(run)


async def learning_curve(run: Run) -> None:
    """Draw the learning curve into the run's folder and the UI."""
    picture = await asyncio.to_thread(draw_curve, run.folder.metrics(), str(run.config.run_id))
    (run.folder.subfolder("plots") / "learning_curve.png").write_bytes(picture)
    data = base64.b64encode(picture).decode()
    await acreate_image_artifact(f"data:image/png;base64,{data}", key=artifact_key(run, "learning-curve"))


async def run_finished(run: Run, summary: dict[str, Any]) -> None:
    """Show the summary and the last curve."""
    rows = "\n".join(f"| {name} | {_short(value)} |" for name, value in summary.items())
    await acreate_markdown_artifact(f"| | |\n|---|---|\n{rows}\n", key=artifact_key(run, "summary"))
    await learning_curve(run)


def draw_curve(records: list[dict[str, Any]], title: str) -> bytes:
    """Return a PNG of success and entropy over iterations.

    Args:
        records: lines of ``metrics.jsonl``.
        title: of the picture.
    """
    figure = Figure(figsize=(7, 3.2), dpi=110)
    margins = {"left": 0.08, "right": 0.985, "bottom": 0.15, "top": 0.9, "wspace": 0.24}  # a layout engine draws twice
    axes = figure.subplots(1, 2, width_ratios=(2, 1), gridspec_kw=margins)
    training = [r for r in records if "rollout/num_episodes" in r]
    goal = "success_rate" if any("rollout/success_rate" in r for r in training) else "reward"
    evaluated = [r for r in records if "eval/greedy_success_rate" in r]
    steps = [r["iteration"] for r in training]
    axes[0].plot(steps, [r.get(f"rollout/{goal}") for r in training], ".-", lw=1, label="training, sampled")
    for mode, marker in (("greedy", "o"), ("sampled", "s")):
        rates = [r[f"eval/{mode}_success_rate"] for r in evaluated]
        below = [max(0.0, x - r[f"eval/{mode}_success_low"]) for x, r in zip(rates, evaluated, strict=True)]
        above = [max(0.0, r[f"eval/{mode}_success_high"] - x) for x, r in zip(rates, evaluated, strict=True)]
        at = [r["iteration"] for r in evaluated]
        axes[0].errorbar(at, rates, (below, above), fmt=marker, capsize=3, label=f"unseen goals, {mode}")
    axes[0].set(xlabel="iteration", ylabel=goal.replace("_", " "), title=title)
    if goal == "success_rate":
        axes[0].set(ylim=(-0.02, 1.04))
    axes[0].legend(fontsize=8, loc="lower right")
    axes[1].plot(steps, [r.get("policy/entropy") for r in training], ".-", lw=1)
    axes[1].set(xlabel="iteration", title="entropy per token")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
