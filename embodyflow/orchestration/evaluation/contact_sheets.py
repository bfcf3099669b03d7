"""Replayed successes and failures, in the run's folder and in the UI."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.orchestration.display.report import Section
from embodyflow.orchestration.display.videos import animation
from embodyflow.orchestration.evaluation.lanes import InTurn, Lane
from embodyflow.orchestration.run.iterations.nodes import Run
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.rows.layout import Layout


async def draw_evaluation(run: Run, task: str, report: NodeReport) -> None:
    """Draw the episodes of one task of an evaluation."""
    await _draw(run, InTurn(), 0, task, f"episodes-{task.replace('/', '-')}", {"split": "eval"}, [report])


async def draw_training(run: Run, index: int, lane: Lane) -> None:
    """Draw the training episodes of an iteration if the run has kept them."""
    await run.stages.drain()
    folder = run.folder.episodes.kept().get(index)
    if folder is not None:
        kept = {"split": "train", "episodes": str(folder.absolute())}
        await _draw(run, lane, index, "training", "episodes", kept, [])


async def _draw(
    run: Run, lane: Lane, index: int, title: str, name: str, config: dict[str, Any], parents: Sequence[NodeReport]
) -> None:
    path = run.folder.subfolder("plots") / f"{name}.png"
    video = run.folder.subfolder("videos") / f"{name}.gif"
    config = {**config, "path": str(path.absolute()), "animation": str(video.absolute())}
    work = NodeWork("contact_sheet", "tasks:contact_sheet", "rollout", 0, config, layout=Layout.REPLICATE)
    problem = (await lane.run(work, parents)).info["problem"]
    if problem:
        get_run_logger().warning("no contact sheet of episodes: %s", problem)
        return
    caption = f"{title}: replayed successes, then failures"
    if run.folder.unrestorable():
        caption += "; replays may differ from the record"
    run.artifacts.put_section(Section.PLAYED, partial(animation, video, caption), title)
    for tracker in run.trackers:
        tracker.log_image(index, f"episodes/{title}", path)
        tracker.log_video(index, f"episodes/{title}", video)
