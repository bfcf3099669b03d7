"""Images of a LeRobot data set: PNG in parquet files, and frames of mp4 files."""

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from embodyflow.datasets.lerobot.layout import VideoPart
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

Images = NDArray[np.uint8]


def decode_pictures(folder: Path, cells: Sequence[dict[str, Any]]) -> Images:
    """Return images from cells of a parquet file, uint8 ``[T, H, W, 3]``.

    Args:
        folder: Folder of the data set.
        cells: Images as Hugging Face's ``Image`` feature stores them: ``bytes``, or the ``path`` of a file.

    Raises:
        ConfigError: An image is missing or damaged, has more than 8 bits a colour, or another size than the first.
    """
    images: list[Images] = []
    for frame, cell in enumerate(cells):
        try:
            source = io.BytesIO(cell["bytes"]) if cell.get("bytes") else folder / cell["path"]
            with Image.open(source) as image:
                if image.mode.startswith(("I", "F")):  # converted to 8 bits, nearly all of a depth image is white
                    raise ConfigError(
                        f"{folder}: the image of frame {frame} of an episode has numbers of more than 8 bits, as a "
                        "depth image has; allowed are colours of 8 bits"
                    )
                images.append(np.asarray(image.convert("RGB")))
        except (OSError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{folder}: the image of frame {frame} of an episode cannot be read: {error}") from error
        if images[-1].shape != images[0].shape:
            raise ConfigError(
                f"{folder}: images of an episode are {list(images[0].shape)} and {list(images[-1].shape)}; allowed is "
                "one size"
            )
    return np.stack(images)


def check_video(path: Path, parts: Sequence[VideoPart], fps: float, shape: tuple[int, ...]) -> None:
    """Check that an mp4 file has the frame rate and the size of images that its data set states, and all its frames.

    No frame may belong to two episodes.

    Args:
        path: The file.
        parts: Parts of the file that are read.
        fps: Frames per second of the data set.
        shape: Shape of an image, ``(H, W, 3)``.

    Raises:
        ConfigError: It is missing or damaged, or has others.
    """
    with _opened(path) as container:
        stream = container.streams.video[0]
        rate, size, num_frames = float(stream.average_rate or 0), (stream.height, stream.width, 3), stream.frames
    if abs(rate - fps) > 0.01 * fps:
        raise ConfigError(f"{path}: has {rate:g} frames per second, its data set says fps={fps:g}")
    if size != shape:
        raise ConfigError(f"{path}: has images {list(size)}, its data set says {list(shape)}")
    for part in parts if num_frames else ():  # 0 means that the file does not say how many it has
        end = round(part.start * fps) + part.num_frames
        if end > num_frames or (part.is_whole and end != num_frames):
            needed = f"its episode has {end} steps" if part.is_whole else f"its episodes need {end}"
            raise ConfigError(f"{path}: has {num_frames} frames, {needed}")
    for part, following in pairwise(sorted(parts, key=lambda part: part.start)):
        if round(following.start * fps) < round(part.start * fps) + part.num_frames:
            raise ConfigError(f"{path}: two of its episodes have the frame at {following.start:.3f} s")


def decode_frames(part: VideoPart, fps: float) -> Images:
    """Return an episode's frames from an mp4 file, uint8 ``[T, H, W, 3]``.

    Args:
        part: Place of the episode.
        fps: Frames per second of the data set.

    Raises:
        ConfigError: The file is missing or damaged, or lacks a frame.
    """
    frames: list[Images] = []
    with _opened(part.path) as container:
        stream = container.streams.video[0]
        container.seek(max(round(part.start / stream.time_base) - 1, 0), stream=stream)
        for frame in container.decode(stream):
            wanted = part.start + len(frames) / fps
            late = float(frame.pts * stream.time_base) - wanted
            if late > 0.5 / fps:
                break
            if late > -0.5 / fps:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == part.num_frames:
                return np.stack(frames)
    raise ConfigError(f"{part.path}: has no frame at {part.start + len(frames) / fps:.3f} s")


def _opened(path: Path) -> Any:
    """Return the opened file, a context manager.

    Raises:
        ConfigError: The file is missing or damaged.
    """
    av = require("av")
    try:
        container = av.open(str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not container.streams.video:
        container.close()
        raise ConfigError(f"{path}: has no video")
    return container
