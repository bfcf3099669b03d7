"""Episode videos for the report: animated WebP inside its Markdown, of bounded size.

The UI renders Markdown to HTML without scripts and keeps pictures that a page contains. An animated picture plays there
by itself, needs no server of files, and opens no door: a policy's text never becomes part of it.
"""

import io
from pathlib import Path

from PIL import Image, ImageSequence

from embodyflow.orchestration.display.markdown import escape_cell
from embodyflow.orchestration.display.report import MAX_PICTURE_BYTES, picture

MAX_WIDTH = 1024
"""Largest width of an animation in pixels; a page of the UI is no wider."""
QUALITIES = (70, 45, 20)
"""WebP qualities, tried until the animation is small enough."""


def animation(path: Path, caption: str) -> str:
    """Return Markdown that plays an animation below its caption.

    Args:
        path: A GIF.
        caption: Any text.
    """
    text = escape_cell(caption)
    content = compressed(path)
    if content is None:
        return f"{text}: too large for this page; see {escape_cell(str(path))}"
    return f"{text}\n\n{picture(content, 'webp', caption)}"


def compressed(path: Path, max_bytes: int = MAX_PICTURE_BYTES) -> bytes | None:
    """Return a GIF as an animated WebP of at most ``max_bytes``, or ``None`` if the smallest form is larger.

    Each round lowers the quality; the last halves the picture and drops every other frame.
    """
    with Image.open(path) as gif:
        frames = [(frame.convert("RGB"), frame.info.get("duration", 100)) for frame in ImageSequence.Iterator(gif)]
    scale = min(1.0, MAX_WIDTH / frames[0][0].width)
    rounds = [(quality, scale, 1) for quality in QUALITIES] + [(QUALITIES[-1], scale / 2, 2)]
    for quality, scale, step in rounds:
        shown = frames[::step]
        width, height = frames[0][0].size
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        pictures = [frame.resize(size) for frame, _ in shown]
        durations = [int(duration) * step for _, duration in shown]
        buffer = io.BytesIO()
        options = {"quality": quality, "method": 2, "duration": durations, "loop": 0}
        pictures[0].save(buffer, "WEBP", save_all=True, append_images=pictures[1:], **options)
        if buffer.tell() <= max_bytes:
            return buffer.getvalue()
    return None
