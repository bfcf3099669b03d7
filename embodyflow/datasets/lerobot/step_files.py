"""The parquet files of a LeRobot data set: one row for each step, one row group for each episode."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from embodyflow.datasets.lerobot.file_numbers import FileNumbers
from embodyflow.datasets.packages import require


@dataclass(frozen=True)
class StoredColumn:
    """A column of an episode: numbers ``[T]`` or ``[T, D]``, or images uint8 ``[T, H, W, 3]``, kept as PNG."""

    values: np.ndarray
    is_image: bool = False


class StepFiles:
    """Appends the steps of episodes to parquet files.

    Args:
        folder: Folder of the data set.
        pattern: Path of the files in it, see :class:`~embodyflow.datasets.lerobot.file_numbers.FileNumbers`.
        max_megabytes: Size at which a file is followed by another, in MB.
        per_folder: Number of files in a folder.
    """

    def __init__(self, folder: Path, pattern: str, max_megabytes: int, per_folder: int) -> None:
        self._numbers = FileNumbers(folder / pattern, max_megabytes, per_folder)
        self._writer: Any = None

    def append(self, columns: Mapping[str, StoredColumn]) -> dict[str, int]:
        """Write the steps of an episode; return the numbers of their folder and file."""
        table = require("pyarrow").table({name: _array(column) for name, column in columns.items()})
        if self._writer is None:
            self._writer = require("pyarrow.parquet").ParquetWriter(self._numbers.path(), table.schema)
        self._writer.write_table(table)
        place = self._numbers.place
        if self._numbers.is_full():
            self.close()
            self._numbers.advance()
        return place

    def close(self) -> None:
        """Close the current file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _array(column: StoredColumn) -> Any:
    arrow, values = require("pyarrow"), column.values
    if column.is_image:
        kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        return arrow.array([{"bytes": _png(image), "path": None} for image in values], kind)
    if values.ndim == 1 or values.shape[1] == 1:  # LeRobot keeps a vector of one number as a number
        return arrow.array(values.reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


def _png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()
