"""The run in the Prefect UI: progress, metrics, learning curve, summary."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.orchestration.display.artifacts import short
from embodyflow.orchestration.display.markdown import escape_cell
from embodyflow.orchestration.display.report import Section, picture
from embodyflow.orchestration.display.videos import animation
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.record.run_folder import RunFolder, unrestorable_lines

NO_BIT_EQUALITY = "replays and repeated runs are not bit-identical"

NUM_SHOWN = 20
"""Number of iterations in the metrics table. The log has at most two further lines for each, of evaluations."""

SHOWN = (
    "rollout/success_rate",
    "rollout/reward",
    "groups/mixed_fraction",
    "policy/kl_to_reference",
    "policy/entropy",
    "perf/env_steps_per_second",
    "perf/iteration_seconds",
    "perf/wait_for_rollout_seconds",
    "perf/rollout_idle_share",
    "perf/rollout_workers",
)
_TAKEN = {"weights": "weights", "models": "models and optimizers", "everything": "whole state"}
DIGEST_LENGTH = 12
"""Number of characters of a digest in the summary; ``summary.json`` has all."""


def report_start(run: Run) -> None:
    """Show the progress bar and the place of the run's folder."""
    report_progress(run, 0)
    report_folder(run)
    report_unrestorable(run)
    for index in (0, run.config.iterations):  # those of a run that is resumed
        if video_path(run, index).exists():
            report_video(run, index)


def video_path(run: Run, index: int) -> Path:
    """Return the file of the video after an iteration."""
    return run.folder.subfolder("videos") / f"iteration-{index:06d}.gif"


def report_video(run: Run, index: int) -> None:
    """Show the video of greedy evaluation episodes before or after training."""
    moment = "before training" if index == 0 else f"after iteration {index}"
    show = partial(animation, video_path(run, index), f"greedy episodes on unseen goals {moment}")
    run.artifacts.put_section(Section.BEFORE if index == 0 else Section.AFTER, show)


def report_folder(run: Run) -> None:
    """Show the place of the run's folder. A link would be dead: browsers open no files from a page of a server."""
    path = escape_cell(str(run.folder.path.absolute()))
    text = f"{path} holds metrics, checkpoints, pictures, videos and the policy."
    if (branch := run.config.branch) is not None:
        origin, taken = escape_cell(branch.run), _TAKEN[branch.take]
        text += f" The run began with the {taken} of {origin} after iteration {branch.iteration}."
    run.artifacts.put_section(Section.FOLDER, text)


def warn_of_unrestorable(folder: RunFolder) -> None:
    """Log each task whose seed does not restore an episode."""
    for line in unrestorable_lines(folder.unrestorable()):
        get_run_logger().warning("%s; groups may begin in different states, and %s", line, NO_BIT_EQUALITY)


def report_unrestorable(run: Run) -> None:
    """Show the tasks whose seed does not restore an episode, if there are any."""
    if lines := unrestorable_lines(run.folder.unrestorable()):
        text = "\n".join(f"- {escape_cell(line)}" for line in lines)
        run.artifacts.put_section(Section.ENVIRONMENTS, f"{text}\n\nTherefore {NO_BIT_EQUALITY}.\n")


def report_progress(run: Run, index: int) -> None:
    """Show the progress and the metrics up to a committed iteration."""
    run.artifacts.put_progress(100.0 * index / run.config.iterations, f"{run.config.iterations} iterations")
    if index > 0:
        run.artifacts.put_table(
            "metrics",
            lambda: latest_numbers(run.folder.metrics.newest(3 * NUM_SHOWN)),
            "metrics of the latest iterations",
        )
        run.artifacts.put_section(Section.CURVE, lambda: picture(_curve(run), "png", "learning curve"))


def report_end(run: Run, summary: dict[str, Any]) -> None:
    """Show the final progress, metrics, curve and summary."""
    report_progress(run, run.config.iterations)
    run.artifacts.put_section(Section.RESULT, summary_table(summary))


def latest_numbers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the metrics table: the last training iterations among these lines."""
    trained = [record for record in records if "rollout/num_episodes" in record]
    return [
        {"iteration": record["iteration"], **{name: record.get(name) for name in SHOWN}}
        for record in trained[-NUM_SHOWN:]
    ]


def _curve(run: Run) -> bytes:
    from embodyflow.orchestration.display.learning_curve import draw_curve  # Matplotlib takes seconds of a start

    picture = draw_curve(run.folder.metrics.read(), str(run.config.run_id))
    (run.folder.subfolder("plots") / "learning_curve.png").write_bytes(picture)
    return picture


def summary_table(summary: dict[str, Any]) -> str:
    """Return a Markdown table of values before and after training with their change, then one of all others."""
    stems = [name.removesuffix("_before") for name in summary if name.endswith("_before")]
    pairs = {stem: _with_change(summary[f"{stem}_before"], summary[f"{stem}_after"]) for stem in stems}
    rest = {name: (value,) for name, value in summary.items() if name.rpartition("_")[0] not in pairs}
    if "weights_digest" in rest:
        rest["weights_digest"] = (str(rest["weights_digest"][0])[:DIGEST_LENGTH],)
    tables = [_table(("before", "after", "change"), pairs), _table(("",), rest)]
    return "\n".join(table for table in tables if table)


def _with_change(before: Any, after: Any) -> tuple[Any, Any, str]:
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    return before, after, f"{after - before:+.4g}" if numbers else ""


def _table(header: Sequence[str], rows: dict[str, tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    cells = [["", *header], ["---"] * (1 + len(header))]
    for name, values in rows.items():
        shown = [str(short(value, escape_cell)) for value in values]
        cells.append([escape_cell(name.replace("_", " ")), *shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
