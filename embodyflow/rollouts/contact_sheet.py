"""A contact sheet: one picture with frames of successful and failed episodes."""

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
"""Number of frames per episode, side of a frame and height of the caption, in pixels."""
COLOURS = {True: "#1b7f3b", False: "#b3261e"}


def draw_contact_sheet(
    config: EmbodiedConfig, episodes: Mapping[str, Any], path: Path, split: str, max_per_outcome: int = 4
) -> str | None:
    """Replay some successes and failures and draw them, one line of frames per episode.

    Args:
        config: Run configuration.
        episodes: Columns of embodied rows, including ``actions`` and ``loss_mask``.
        path: Path of the PNG file.
        split: Split of the episodes' goals.
        max_per_outcome: Largest number of successes, and of failures.

    Returns:
        The reason why this machine or this environment cannot render, or ``None`` after success.
    """
    if problem := rendering_problem():
        return problem
    chosen = choose_episodes(episodes, max_per_outcome)
    try:
        lines = [_line(config, {name: column[row] for name, column in episodes.items()}, split) for row in chosen]
    except CannotDrawError as error:
        return str(error)
    sheet = Image.new("RGB", (FRAMES * SIDE, len(lines) * (SIDE + CAPTION)), "white")
    for number, line in enumerate(lines):
        sheet.paste(line, (0, number * (SIDE + CAPTION)))
    sheet.save(path)
    return None


def choose_episodes(episodes: Mapping[str, Any], max_per_outcome: int) -> list[int]:
    """Return the rows of some successes, then of some failures; a goal repeats only after all others have occurred."""
    success, tasks, goals = (np.asarray(episodes[name]) for name in ("success", "env_task_id", "goal"))
    chosen: list[int] = []
    for outcome in (True, False):
        times: Counter[tuple[int, int]] = Counter()
        ranked = []
        for row in np.flatnonzero(success == outcome).tolist():
            goal = (int(tasks[row]), int(goals[row]))
            ranked.append((times[goal], row))
            times[goal] += 1
        chosen += [row for _, row in sorted(ranked)[:max_per_outcome]]
    return chosen


def _line(config: EmbodiedConfig, episode: Mapping[str, Any], split: str) -> Image.Image:
    line = Image.new("RGB", (FRAMES * SIDE, SIDE + CAPTION), COLOURS[bool(episode["success"])])
    caption = f"{config.env.tasks[int(episode['env_task_id'])]}, goal {episode['goal']}: " + (
        f"{'success' if episode['success'] else 'failure'} after {episode['num_steps']} steps"
    )
    ImageDraw.Draw(line).text((4, 1), caption, fill="white")
    for column, frame in enumerate(frames_of(config, episode, split, max_frames=FRAMES)):
        line.paste(Image.fromarray(frame).resize((SIDE, SIDE)), (column * SIDE, CAPTION))
    return line
