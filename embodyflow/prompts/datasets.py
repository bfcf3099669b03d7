"""Datasets on disk, partitioned into contiguous rows per rank.

The number of rows comes from a file's metadata (parquet footer, Arrow schema) or from its line ends; each rank then
reads only its own rows. Needs ``pip install 'embodyflow[data]'``.
"""

import json
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from embodyflow.errors import ConfigError

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Extent(ABC):
    """Rows ``start`` (inclusive) to ``stop`` (exclusive) of one file.

    Attributes:
        path: Path of the file, or of the folder of a Hugging Face dataset.
        start, stop: Row numbers within the file, from 0.
    """

    path: str
    start: int
    stop: int

    @classmethod
    @abstractmethod
    def of(cls, path: str) -> "Extent":
        """Return the extent of a whole file, without reading its rows."""

    @abstractmethod
    def cut(self, start: int, stop: int) -> "Extent":
        """Return an extent of the same file, by row numbers within the file; call it on the whole file."""

    @abstractmethod
    def read(self, columns: Sequence[str]) -> list[Row]:
        """Return the given columns of the rows.

        Raises:
            ConfigError: A column is missing or the file is damaged; the message names file and line.
        """


@dataclass(frozen=True)
class ParquetExtent(Extent):
    """Rows of a parquet file; reads only the requested columns of the row groups that hold the rows."""

    @classmethod
    def of(cls, path: str) -> "ParquetExtent":
        """Return the extent of a whole file, from its footer."""
        return cls(path, 0, pyarrow.parquet.ParquetFile(path).metadata.num_rows)

    def cut(self, start: int, stop: int) -> "ParquetExtent":
        """Return an extent of the same file."""
        return ParquetExtent(self.path, start, stop)

    def read(self, columns: Sequence[str]) -> list[Row]:
        """Return the given columns of the rows."""
        with pyarrow.parquet.ParquetFile(self.path) as file:
            _check_columns(self.path, columns, file.schema_arrow.names)
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum(sizes)
            groups = [g for g, end in enumerate(ends) if end > self.start and end - sizes[g] < self.stop]
            before = int(ends[groups[0]] - sizes[groups[0]])
            table = file.read_row_groups(groups, columns=list(columns))
        return list(table.slice(self.start - before, self.stop - self.start).to_pylist())


@dataclass(frozen=True)
class ArrowExtent(Extent):
    """Rows of an Arrow IPC file or stream, which is memory-mapped, so only the pages of these rows are read."""

    @classmethod
    def of(cls, path: str) -> "ArrowExtent":
        """Return the extent of a whole file."""
        return cls(path, 0, _map_arrow(path).num_rows)

    def cut(self, start: int, stop: int) -> "ArrowExtent":
        """Return an extent of the same file."""
        return ArrowExtent(self.path, start, stop)

    def read(self, columns: Sequence[str]) -> list[Row]:
        """Return the given columns of the rows."""
        table = _map_arrow(self.path)
        _check_columns(self.path, columns, table.column_names)
        return list(table.slice(self.start, self.stop - self.start).select(list(columns)).to_pylist())


@dataclass(frozen=True)
class HuggingFaceExtent(Extent):
    """Rows of a folder written by ``datasets.Dataset.save_to_disk``, which are memory-mapped."""

    @classmethod
    def of(cls, path: str) -> "HuggingFaceExtent":
        """Return the extent of a whole dataset."""
        return cls(path, 0, len(_load_from_disk(path)))

    def cut(self, start: int, stop: int) -> "HuggingFaceExtent":
        """Return an extent of the same dataset."""
        return HuggingFaceExtent(self.path, start, stop)

    def read(self, columns: Sequence[str]) -> list[Row]:
        """Return the given columns of the rows."""
        dataset = _load_from_disk(self.path)
        _check_columns(self.path, columns, dataset.column_names)
        return list(dataset.select_columns(list(columns)).select(range(self.start, self.stop)))


@dataclass(frozen=True)
class JSONLinesExtent(Extent):
    """Rows of a file with one JSON object per line.

    Attributes:
        line_ends: Byte offset after each line, only in the extent of a whole file.
        start_byte, stop_byte: Byte range of the rows in the file.
    """

    start_byte: int
    stop_byte: int
    line_ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, path: str) -> "JSONLinesExtent":
        """Return the extent of a whole file, after one pass over its line ends."""
        size = Path(path).stat().st_size
        ends = _line_ends(path) if size else []
        return cls(path, 0, len(ends), 0, size, tuple(ends))

    def cut(self, start: int, stop: int) -> "JSONLinesExtent":
        """Return an extent of the same file."""
        bounds = (0, *self.line_ends)
        return JSONLinesExtent(self.path, start, stop, bounds[start], bounds[stop])

    def read(self, columns: Sequence[str]) -> list[Row]:
        """Return the given columns of the rows."""
        lines = _bytes_of(self.path, self.start_byte, self.stop_byte).split(b"\n")[: self.stop - self.start]
        return [self._parse(line, self.start + number, columns) for number, line in enumerate(lines, 1)]

    def _parse(self, line: bytes, number: int, columns: Sequence[str]) -> Row:
        where = f"{self.path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: is not a JSON object with the columns {', '.join(columns)}")
        _check_columns(where, columns, list(row))
        return {name: row[name] for name in columns}


FORMATS: dict[str, type[Extent]] = {
    ".parquet": ParquetExtent,
    ".arrow": ArrowExtent,
    ".jsonl": JSONLinesExtent,
}


def partition(paths: Sequence[str], num_ranks: int) -> list[tuple[Extent, ...]]:
    """Partition the rows of files into one contiguous range per rank; sizes differ by at most one row.

    Args:
        paths: Files, whose suffix names the format, or folders of Hugging Face datasets, in order.
        num_ranks: Number of ranks, at least 1.

    Raises:
        ConfigError: A path is missing, damaged or of another format, or there are fewer rows than ranks.
    """
    files = [_open(path) for path in paths]
    total = sum(file.stop for file in files)
    if total < num_ranks:
        raise ConfigError(f"{', '.join(paths)}: {total} rows for {num_ranks} ranks; needs at least one row per rank")
    parts = []
    for rank in range(num_ranks):
        start, stop, first = total * rank // num_ranks, total * (rank + 1) // num_ranks, 0
        extents = []
        for file in files:
            low, high = max(start - first, 0), min(stop - first, file.stop)
            if low < high:
                extents.append(file.cut(low, high))
            first += file.stop
        parts.append(tuple(extents))
    return parts


def _open(path: str) -> Extent:
    format_ = HuggingFaceExtent if Path(path).is_dir() else FORMATS.get(Path(path).suffix)
    if format_ is None:
        raise ConfigError(f"{path}: allowed are {', '.join(FORMATS)} and folders of Hugging Face datasets")
    try:
        return format_.of(path)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: cannot be read: {str(error).partition(chr(10))[0]}") from error


def _check_columns(where: str, wanted: Sequence[str], available: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in available]
    if missing:
        raise ConfigError(f"{where}: has no column {', '.join(missing)}; it has {', '.join(available)}")


def _map_arrow(path: str) -> Any:
    memory = pa.memory_map(path)
    try:
        return pyarrow.ipc.open_file(memory).read_all()
    except pa.ArrowInvalid:  # a stream, the format that Hugging Face writes
        memory.seek(0)
        return pyarrow.ipc.open_stream(memory).read_all()


def _load_from_disk(path: str) -> Any:
    import datasets  # takes seconds to import, and the other formats do not need it

    dataset = datasets.load_from_disk(path)
    if isinstance(dataset, datasets.DatasetDict):
        raise ConfigError(f"{path}: holds several splits; allowed are {', '.join(f'{path}/{s}' for s in dataset)}")
    return dataset


def _bytes_of(path: str, start: int, stop: int) -> bytes:
    """Return the bytes ``start`` to ``stop`` of a file; a single read returns at most 2 GiB."""
    pieces, left = [], stop - start
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _line_ends(path: str) -> list[int]:
    """Return the byte offset after each line; the last line may lack a line feed."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        content = np.frombuffer(memory, np.uint8)
        ends: list[int] = (np.flatnonzero(content == ord("\n")) + 1).tolist()
        size = len(content)
        del content  # the map cannot be closed while an array refers to it
    return ends if ends and ends[-1] == size else [*ends, size]
