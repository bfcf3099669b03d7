"""Clips of episodes with captions, side by side in one animation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Frame = NDArray[np.uint8]

COLUMNS, CAPTION = 4, 28
"""Number of clips in a row, and height of a clip's caption in pixels."""
COLOURS = {True: "#1b7f3b", False: "#b3261e"}
"""Colours of success and failure."""


@dataclass(frozen=True)
class Clip:
    """An episode to show.

    Attributes:
        frames: Frames, each uint8 ``[H, W, 3]``, from the first to the last.
        task: Name of the task.
        goal: Number of the goal.
        success: Whether the episode reached the goal.
        num_steps: Number of environment steps.
    """

    frames: Sequence[Frame]
    task: str
    goal: int
    success: bool
    num_steps: int

    @property
    def outcome(self) -> str:
        """Goal, outcome and length in words."""
        return f"goal {self.goal}: {'success' if self.success else 'failure'} after {self.num_steps} steps"


def write_animation(clips: Sequence[Clip], path: Path, frames_per_second: float, side: int | None = None) -> None:
    """Write clips as one looping animation, :data:`COLUMNS` in a row; a clip that ends holds its last frame.

    Args:
        clips: Clips with frames of one size; at least one.
        path: File to write; its suffix names the format.
        frames_per_second: Frame rate.
        side: Width and height of a frame in pixels; ``None`` keeps the frames' own.
    """
    num_columns = min(len(clips), COLUMNS)
    frames = []
    for moment in range(max(len(clip.frames) for clip in clips)):
        tiles = [_tile(clip, min(moment, len(clip.frames) - 1), side) for clip in clips]
        width, height = tiles[0].size
        picture = Image.new("RGB", (num_columns * width, -(-len(tiles) // num_columns) * height), "white")
        for number, tile in enumerate(tiles):
            picture.paste(tile, (number % num_columns * width, number // num_columns * height))
        frames.append(np.asarray(picture))
    iio.imwrite(path, frames, duration=1000 / frames_per_second, loop=0)


def _tile(clip: Clip, moment: int, side: int | None) -> Image.Image:
    """Return a frame of a clip below its caption, whose colour shows the outcome."""
    frame = Image.fromarray(clip.frames[moment])
    if side is not None:
        frame = frame.resize((side, side))
    tile = Image.new("RGB", (frame.width, frame.height + CAPTION), COLOURS[clip.success])
    draw = ImageDraw.Draw(tile)
    for line, text in enumerate((clip.task, clip.outcome)):
        draw.text((3, 1 + line * CAPTION // 2), _shortened(draw, text, frame.width - 6), fill="white")
    tile.paste(frame, (0, CAPTION))
    return tile


def _shortened(draw: ImageDraw.ImageDraw, text: str, width: int) -> str:
    """Return a text, cut to a width in pixels."""
    while text and draw.textlength(text) > width:
        text = text[:-1]
    return text
