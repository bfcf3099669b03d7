"""The mp4 files of one camera of a LeRobot data set: the frames of episodes one after the other."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from embodyflow.datasets.lerobot.file_numbers import FileNumbers
from embodyflow.datasets.packages import require

CODEC, PIXELS = "h264", "yuv420p"
OPTIONS = {"g": "2", "bf": "0", "crf": "18"}
"""A key frame at every second frame, so that any frame is found at once, and losses that are hard to see."""


class VideoFiles:
    """Appends episodes to mp4 files.

    Args:
        pattern: Path of the files, see :class:`~embodyflow.datasets.lerobot.file_numbers.FileNumbers`.
        fps: Frames per second.
        max_megabytes: Size at which a file is followed by another, in MB.
        per_folder: Number of files in a folder.
    """

    def __init__(self, pattern: Path, fps: float, max_megabytes: int, per_folder: int) -> None:
        self._numbers = FileNumbers(pattern, max_megabytes, per_folder)
        self._fps, self._rate = fps, Fraction(fps).limit_denominator(1001)
        self._container: Any = None
        self._num_frames = 0

    def info(self, height: int, width: int) -> dict[str, Any]:
        """Return the description of the files in ``meta/info.json``."""
        size = {"video.height": height, "video.width": width, "video.channels": 3}
        coding = {"video.codec": CODEC, "video.pix_fmt": PIXELS, "video.fps": self._fps}
        return size | coding | {"video.is_depth_map": False, "has_audio": False}

    def append(self, images: np.ndarray) -> dict[str, float]:
        """Write the frames of an episode, uint8 ``[T, H, W, 3]``.

        Returns:
            ``chunk_index`` and ``file_index`` of the file; ``from_timestamp`` and ``to_timestamp`` in it, in seconds.
        """
        if self._container is None:
            self._open(images.shape[1], images.shape[2])
        place, start = self._numbers.place, self._num_frames / self._fps
        for image in images:
            frame = require("av").VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = self._num_frames, 1 / self._rate
            self._container.mux(self._stream.encode(frame))
            self._num_frames += 1
        times = {"from_timestamp": start, "to_timestamp": self._num_frames / self._fps}
        if self._numbers.is_full():
            self.close()
            self._numbers.advance()
        return place | times

    def close(self) -> None:
        """Write what the encoder holds back, and close the current file."""
        if self._container is not None:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._container, self._num_frames = None, 0

    def _open(self, height: int, width: int) -> None:
        self._container = require("av").open(str(self._numbers.path()), "w")
        self._stream = self._container.add_stream(CODEC, rate=self._rate, options=dict(OPTIONS))
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, PIXELS
