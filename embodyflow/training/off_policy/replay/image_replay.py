"""Transitions with images, each of which is stored once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from embodyflow.training.off_policy.replay.frames import Frames, frame_dtype, frames_per_file
from embodyflow.training.off_policy.replay.replay_buffer import Images, ReplayBuffer, Shape, Transitions
from embodyflow.training.off_policy.replay.segments import Array, Segments

FOLDER = "frames"
"""Name of the folder of the frames in that of the transitions."""

IMAGES = "frames."
"""Prefix of the columns with a camera's images, of which there is one for each frame."""


class ImageReplayBuffer(ReplayBuffer):
    """The newest transitions of a run with the images before and after them.

    Transitions refer to frames, the images of all cameras at one moment. Decisions that follow each other share one:
    the frame after the first is the one before the second. A file of transitions has no more of them than a file of
    frames has frames, so that frames are removed as soon as a file of them is old.

    Args:
        segments: Records on disk.
        frames: Frames on disk.
        shape: Sizes of a transition.
        capacity: Number of newest transitions to draw from.
    """

    def __init__(self, segments: Segments, frames: Frames, shape: Shape, capacity: int) -> None:
        super().__init__(segments, shape, capacity)
        self._frames = frames

    @classmethod
    def create(cls, folder: Path, shape: Shape, capacity: int, segment_size: int | None = None) -> Self:
        """Return an empty buffer in a folder.

        Args:
            folder: Folder of the buffer.
            shape: Sizes of a transition.
            capacity: Number of newest transitions to draw from.
            segment_size: Transitions, and frames, in one file; ``None`` follows the size of a frame.
        """
        size = segment_size or frames_per_file(shape.cameras)
        segments = Segments.create(folder, shape.record, size)
        frames = Frames.create(folder / FOLDER, frame_dtype(shape.cameras), size)
        return cls(segments, frames, shape, capacity)

    @classmethod
    def _of_state(cls, folder: Path, shape: Shape, capacity: int, state: Mapping[str, Any], *, cut: bool) -> Self:
        segments = Segments.open(folder, shape.record, state, cut=cut)
        frames = Frames.open(folder / FOLDER, frame_dtype(shape.cameras), state["frames"], cut=cut)
        return cls(segments, frames, shape, capacity)

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append the transitions of one or more steps of all environments, with their frames.

        Args:
            columns: Those of :class:`ReplayBuffer`, with n entries each, and

                * ``frames.<camera>``: Images of F frames, uint8 ``[F, H, W, 3]``.
                * ``frame``, ``next_frame``: Places in these F of the frames before and after each transition, int64
                  ``[n]``. ``frame`` never falls.

        Raises:
            ValueError: A number is NaN or inf, also in float32; images have other sizes, or there is no such frame.
        """
        images = {camera: columns[IMAGES + camera] for camera in self.shape.cameras}
        self._check(images, columns["frame"], columns["next_frame"])
        records, before = self._records(columns), len(self._frames)
        for name in ("frame", "next_frame"):
            records[name] += before
        self._frames.append_images(images)
        self._segments.append(records)

    def columns(self) -> dict[str, Array]:
        """Return all transitions by column, as :meth:`append` takes them."""
        columns = super().columns()
        first = int(columns["frame"].min(initial=len(self._frames)))
        columns["frame"], columns["next_frame"] = columns["frame"] - first, columns["next_frame"] - first
        images = self._frames.read_images(np.arange(first, len(self._frames)))
        return columns | {IMAGES + camera: each for camera, each in images.items()}

    def commit(self) -> dict[str, Any]:
        """Flush what is new to the disk; return the state by which :meth:`open` finds the buffer again."""
        frames = self._frames.flush_new(self._frame_of(self.oldest))
        return self._segments.commit(self.shape.facts() | {"frames": frames}, self.oldest)

    def digests(self) -> list[str]:
        """Return the digests of the buffer's files."""
        return super().digests() + self._frames.digests()

    def drop_before(self, index: int) -> None:
        """Remove files whose transitions are all before ``index``, and files of frames that no other needs."""
        self._frames.drop_before(self._frame_of(index))
        super().drop_before(index)

    def _batch(self, first: Array, last: Array, returns: torch.Tensor, discounts: torch.Tensor) -> Transitions:
        size, found = len(first), self._frames.read_images(np.concatenate([first["frame"], last["next_frame"]]))
        both = {camera: torch.from_numpy(images) for camera, images in found.items()}
        before: Images = {camera: images[:size] for camera, images in both.items()}
        after: Images = {camera: images[size:] for camera, images in both.items()}
        return replace(super()._batch(first, last, returns, discounts), images=before, next_images=after)

    def _frame_of(self, index: int) -> int:
        """Return the oldest frame that is needed with all transitions in the file of one."""
        if index >= len(self):
            return len(self._frames)
        kept = max(self._segments.first_of_file(index), self._segments.first)
        return int(self._segments.read(np.array([kept]))["frame"][0])

    def _check(self, images: Mapping[str, Array], frame: Array, next_frame: Array) -> None:
        counts = {len(each) for each in images.values()}
        for camera, size in self.shape.cameras.items():
            found = images[camera]
            if found.dtype != np.uint8 or found.shape[1:] != tuple(size) or len(counts) > 1:
                raise ValueError(
                    f"replay: camera {camera} has images {found.dtype} {list(found.shape)}, not uint8 "
                    f"[{min(counts)}, {', '.join(map(str, size))}]"
                )
        both, (count,) = np.concatenate([frame, next_frame]), counts
        if not (both.min(initial=0) >= 0 and both.max(initial=-1) < count and (np.diff(frame) >= 0).all()):
            raise ValueError(f"replay: transitions refer to frames out of order, or not to one of {count}")


def buffer_of(shape: Shape) -> type[ReplayBuffer]:
    """Return the class of the replay buffer for transitions of a shape."""
    return ImageReplayBuffer if shape.cameras else ReplayBuffer
