"""Frames in files: what all cameras show at one moment, stored once for all transitions that begin or end with it."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodyflow.errors import DamageError
from embodyflow.training.off_policy.replay.segments import Array, Segments

FILE_BYTES = 128 * 2**20
"""Largest size of a file, unless one frame is larger."""

PART_BYTES = 8 * 2**20
"""Bytes of frames that are brought together at a time before they are written."""


class Frames(Segments):
    """Frames by their index in the order in which they were appended.

    A frame is read into the result, and the files are never mapped: pages of a mapped file count as resident memory of
    the process, of which a batch of random frames would add more and more.
    """

    record = "frame"

    def append_images(self, images: Mapping[str, Array]) -> None:
        """Append frames; they survive a power failure after the next commit.

        Args:
            images: Images by camera, uint8 ``[n, H, W, 3]``.
        """
        count, part = len(images[self._cameras[0]]), max(PART_BYTES // self._dtype.itemsize, 1)
        for start in range(0, count, part):
            records = np.empty(min(part, count - start), self._dtype)
            for camera in self._cameras:
                records[camera] = images[camera][start : start + part]
            self.append(records)

    def read_images(self, indices: Array) -> dict[str, Array]:
        """Return the images of the frames with these indices, int64 ``[n]``, by camera, uint8 ``[n, H, W, 3]``.

        Raises:
            IndexError: An index is of no frame, or of one that was dropped.
            DamageError: A file is missing or too short.
        """
        self._require_kept(indices)
        images = {camera: np.empty((len(indices), *self._dtype[camera].shape), np.uint8) for camera in self._cameras}
        numbers, rows = np.divmod(indices, self._size)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            self._read_file(number, places.tolist(), rows[places].tolist(), list(images.values()))
        return images

    def _read_file(self, number: int, places: list[int], rows: list[int], images: list[Array]) -> None:
        """Read the frames in these rows of a file into these places of the images of each camera."""
        path, frame_bytes = self._path(number), self._dtype.itemsize
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise DamageError(f"{path} is missing or too short") from error
        try:
            for place, row in zip(places, rows, strict=True):
                if os.preadv(descriptor, [each[place].data for each in images], row * frame_bytes) != frame_bytes:
                    raise DamageError(f"{path} is missing or too short")
        finally:
            os.close(descriptor)

    @property
    def _cameras(self) -> tuple[str, ...]:
        return self._dtype.names or ()

    def _extended(self, number: int) -> None:
        """Do nothing: files are not mapped."""


def frame_dtype(cameras: Mapping[str, tuple[int, int, int]]) -> np.dtype[Any]:
    """Return the type of a frame on disk: the images of all cameras, in the order of their names."""
    return np.dtype([(camera, "u1", size) for camera, size in sorted(cameras.items())])


def frames_per_file(cameras: Mapping[str, tuple[int, int, int]]) -> int:
    """Return the number of frames in a file."""
    return max(FILE_BYTES // frame_dtype(cameras).itemsize, 1)
