"""Successful and failed episodes, replayed: a contact sheet of frames, and an animation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.rollouts.embodied.clips import COLOURS, Clip, write_animation
from embodyflow.rollouts.replay import FRAMES_PER_SECOND, frames_in
from embodyflow.simulation.frames import CannotDrawError, drawing_env
from embodyflow.simulation.rendering import rendering_problem

FRAMES, SIDE, CAPTION = 5, 128, 14
"""Number of frames per episode, side of a frame and height of the caption, in pixels."""
ANIMATED_FRAMES, ANIMATED_SIDE = 24, 192
"""Largest number of frames per episode in the animation, and side of a frame in pixels."""


def draw_contact_sheet(
    config: EmbodiedConfig,
    episodes: Mapping[str, Any],
    path: Path,
    split: str,
    max_per_outcome: int = 4,
    animation: Path | None = None,
) -> str | None:
    """Replay some successes and failures and draw them, one line of frames per episode.

    Args:
        config: Run configuration.
        episodes: Columns of embodied rows, including ``actions`` and ``loss_mask``.
        path: Path of the PNG file.
        split: Split of the episodes' goals.
        max_per_outcome: Largest number of successes, and of failures.
        animation: File of an animation of the same episodes; ``None`` writes none.

    Returns:
        The reason why this machine or this environment cannot render, or ``None`` after success.
    """
    if problem := rendering_problem():
        return problem
    try:
        clips = _replay(config, episodes, choose_episodes(episodes, max_per_outcome), split)
    except CannotDrawError as error:
        return str(error)
    sheet = Image.new("RGB", (FRAMES * SIDE, len(clips) * (SIDE + CAPTION)), "white")
    for number, clip in enumerate(clips):
        sheet.paste(_line(clip), (0, number * (SIDE + CAPTION)))
    sheet.save(path)
    if animation is not None:
        write_animation(clips, animation, FRAMES_PER_SECOND, ANIMATED_SIDE)
    return None


def _replay(config: EmbodiedConfig, episodes: Mapping[str, Any], rows: Sequence[int], split: str) -> list[Clip]:
    """Replay rows; return their clips in the order of ``rows``. Rows of one task share an environment."""
    clips: dict[int, Clip] = {}
    for task_id in sorted({int(episodes["env_task_id"][row]) for row in rows}):
        task = config.env.tasks[task_id]
        with drawing_env(config.env, task, split) as env:
            for row in rows:
                episode = {name: column[row] for name, column in episodes.items()}
                if int(episode["env_task_id"]) == task_id:
                    goal, success, num_steps = (episode[name] for name in ("goal", "success", "num_steps"))
                    frames = frames_in(env, config, episode, ANIMATED_FRAMES)
                    clips[row] = Clip(frames, task, int(goal), bool(success), int(num_steps))
    return [clips[row] for row in rows]


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


def _line(clip: Clip) -> Image.Image:
    line = Image.new("RGB", (FRAMES * SIDE, SIDE + CAPTION), COLOURS[clip.success])
    ImageDraw.Draw(line).text((4, 1), f"{clip.task}, {clip.outcome}", fill="white")
    shown = np.linspace(0, len(clip.frames) - 1, min(FRAMES, len(clip.frames))).round().astype(int)
    for column, moment in enumerate(shown):
        line.paste(Image.fromarray(clip.frames[moment]).resize((SIDE, SIDE)), (column * SIDE, CAPTION))
    return line
