"""Contact sheets of successful and failed episodes, in the run's folder and in the UI."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect.logging import get_run_logger

from embodyflow.orchestration.run.nodes import Run, submit_node
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.layout import Layout


async def draw_evaluation(run: Run, task: str, report: NodeReport) -> None:
    """Draw the episodes of one task of an evaluation."""
    await _draw(run, f"episodes-{task.replace('/', '-')}", {"split": "eval"}, [report])


async def draw_training(run: Run, index: int) -> None:
    """Draw the training episodes of an iteration if the run has kept them."""
    await run.stages.drain()
    folder = run.folder.episodes.kept().get(index)
    if folder is not None:
        await _draw(run, "episodes", {"split": "train", "episodes": str(folder.absolute())}, [])


async def _draw(run: Run, name: str, config: dict[str, Any], parents: Sequence[NodeReport]) -> None:
    path = run.folder.subfolder("plots") / f"{name}.png"
    config = {**config, "path": str(path.absolute())}
    work = NodeWork("contact_sheet", "tasks:contact_sheet", "rollout", 0, config, layout=Layout.REPLICATE)
    problem = (await submit_node(work, parents)).info["problem"]
    if problem:
        get_run_logger().warning("no contact sheet of episodes: %s", problem)
    else:
        picture = await asyncio.to_thread(path.read_bytes)
        description = "successful and failed episodes, from first to last frame"
        if run.folder.unrestorable():
            description += "; replays that may differ from the record"
        run.artifacts.put_picture(name, picture, description)
