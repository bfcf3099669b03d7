"""Successes and failures side by side in one picture: what goes right, and what goes wrong."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.rollouts.replay import frames_of
from embodyflow.simulation.frames import CannotDrawError
from embodyflow.simulation.rendering import rendering_problem

FRAMES, SIDE, CAPTION = 5, 128, 14
"""Frames of an episode, pixels a side of each, and of the line above them."""
COLOURS = {True: "#1b7f3b", False: "#b3261e"}


def draw_contact_sheet(
    config: EmbodiedConfig, episodes: Mapping[str, Any], path: Path, split: str, most: int = 4
) -> str | None:
    """Play some successes and failures again and draw them, an episode a line, beginning to end.

    Args:
        config: of the run.
        episodes: columns of embodied rows, ``actions`` and ``loss_mask`` among them.
        path: of the PNG.
        split: whose goals they have.
        most: successes drawn, and failures.

    Returns:
        Why it could not be rendered on this machine, or of this environment, or ``None``.
    """
    if problem := rendering_problem():
        return problem
    chosen = choose_episodes(episodes, most)
    try:
        lines = [_line(config, {name: column[row] for name, column in episodes.items()}, split) for row in chosen]
    except CannotDrawError as error:
        return str(error)
    sheet = Image.new("RGB", (FRAMES * SIDE, len(lines) * (SIDE + CAPTION)), "white")
    for number, line in enumerate(lines):
        sheet.paste(line, (0, number * (SIDE + CAPTION)))
    sheet.save(path)
    return None


def choose_episodes(episodes: Mapping[str, Any], most: int) -> list[int]:
    """Return the rows of some successes, then of some failures: no goal again before every other one was there."""
    success, tasks, goals = (np.asarray(episodes[name]) for name in ("success", "env_task_id", "goal"))
    chosen: list[int] = []
    for outcome in (True, False):
        times: Counter[tuple[int, int]] = Counter()
        ranked = []
        for row in np.flatnonzero(success == outcome).tolist():
            goal = (int(tasks[row]), int(goals[row]))
            ranked.append((times[goal], row))
            times[goal] += 1
        chosen += [row for _, row in sorted(ranked)[:most]]
    return chosen


def _line(config: EmbodiedConfig, episode: Mapping[str, Any], split: str) -> Image.Image:
    line = Image.new("RGB", (FRAMES * SIDE, SIDE + CAPTION), COLOURS[bool(episode["success"])])
    caption = f"{config.env.tasks[int(episode['env_task_id'])]}, goal {episode['goal']}: " + (
        f"{'success' if episode['success'] else 'failure'} after {episode['num_steps']} steps"
    )
    ImageDraw.Draw(line).text((4, 1), caption, fill="white")
    for column, frame in enumerate(frames_of(config, episode, split, most=FRAMES)):
        line.paste(Image.fromarray(frame).resize((SIDE, SIDE)), (column * SIDE, CAPTION))
    return line
