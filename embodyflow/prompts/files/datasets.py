"""Datasets on disk, partitioned into contiguous rows per rank.

The number of rows comes from a file's metadata (parquet footer, Arrow schema) or from its line ends; each rank then
reads only its own rows. A JSON list or a CSV file is read whole. Needs ``pip install 'embodyflow[data]'``.
"""

import csv
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
from embodyflow.prompts.files.columns import check_columns

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
    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows.

        Args:
            columns: Names of columns; of a nested one, such as ``extra_info.index``, the whole column is returned.
            others: Also return all other columns, without binary ones such as images.

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

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        with pyarrow.parquet.ParquetFile(self.path) as file:
            chosen = _choose(self.path, columns, file.schema_arrow, others)
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum(sizes)
            groups = [g for g, end in enumerate(ends) if end > self.start and end - sizes[g] < self.stop]
            before = int(ends[groups[0]] - sizes[groups[0]])
            table = file.read_row_groups(groups, columns=chosen)
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

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        table = _map_arrow(self.path)
        chosen = _choose(self.path, columns, table.schema, others)
        return list(table.slice(self.start, self.stop - self.start).select(chosen).to_pylist())


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

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        dataset = _load_from_disk(self.path)
        chosen = _choose(self.path, columns, dataset.features.arrow_schema, others)
        return list(dataset.select_columns(chosen).select(range(self.start, self.stop)))


@dataclass(frozen=True)
class JSONLinesExtent(Extent):
    """Rows of a file with one JSON object per line; blank lines are not rows.

    Attributes:
        start_byte, stop_byte: Byte range of the rows in the file.
        start_line: Number of lines before the byte range.
        lines: Line number, from 1, and byte offset after the line, of each row; only in the extent of a whole file.
    """

    start_byte: int
    stop_byte: int
    start_line: int = 0
    lines: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, path: str) -> "JSONLinesExtent":
        """Return the extent of a whole file, after one pass over its line ends."""
        size = Path(path).stat().st_size
        lines = _filled_lines(path) if size else ()
        return cls(path, 0, len(lines), 0, size, 0, lines)

    def cut(self, start: int, stop: int) -> "JSONLinesExtent":
        """Return an extent of the same file."""
        bounds = ((0, 0), *self.lines)
        (line, start_byte), (_, stop_byte) = bounds[start], bounds[stop]
        return JSONLinesExtent(self.path, start, stop, start_byte, stop_byte, line)

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        lines = _bytes_of(self.path, self.start_byte, self.stop_byte).split(b"\n")
        return [
            self._parse(line, f"{self.path}:{number}", columns, others)
            for number, line in enumerate(lines, self.start_line + 1)
            if line.strip()
        ]

    def _parse(self, line: bytes, where: str, columns: Sequence[str], others: bool) -> Row:
        try:
            row = json.loads(line, object_pairs_hook=_without_repetition)
        except ValueError as error:
            raise ConfigError(f"{where}: is not JSON: {error}") from error
        return _pick(row, where, columns, others)


@dataclass(frozen=True)
class JSONListExtent(Extent):
    """Rows of a file that holds one JSON list of objects."""

    @classmethod
    def of(cls, path: str) -> Extent:
        """Return the extent of a whole file; a file of JSON lines may have the same suffix."""
        with open(path, "rb") as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        return cls(path, 0, len(_load_json_list(path))) if start == b"[" else JSONLinesExtent.of(path)

    def cut(self, start: int, stop: int) -> "JSONListExtent":
        """Return an extent of the same file."""
        return JSONListExtent(self.path, start, stop)

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        rows = _load_json_list(self.path)[self.start : self.stop]
        return [
            _pick(row, f"{self.path}, row {number}", columns, others) for number, row in enumerate(rows, self.start + 1)
        ]


@dataclass(frozen=True)
class CSVExtent(Extent):
    """Rows of a file of comma-separated values, or tab-separated ones, below a header; all values are text."""

    @classmethod
    def of(cls, path: str) -> "CSVExtent":
        """Return the extent of a whole file."""
        return cls(path, 0, len(_load_csv(path)))

    def cut(self, start: int, stop: int) -> "CSVExtent":
        """Return an extent of the same file."""
        return CSVExtent(self.path, start, stop)

    def read(self, columns: Sequence[str], *, others: bool = False) -> list[Row]:
        """Return the given columns of the rows."""
        return [_pick(row, self.path, columns, others) for row in _load_csv(self.path)[self.start : self.stop]]


FORMATS: dict[str, type[Extent]] = {
    ".parquet": ParquetExtent,
    ".arrow": ArrowExtent,
    ".jsonl": JSONLinesExtent,
    ".json": JSONListExtent,
    ".csv": CSVExtent,
    ".tsv": CSVExtent,
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


def _choose(where: str, columns: Sequence[str], schema: pa.Schema, others: bool) -> list[str]:
    """Return the names of the columns to read."""
    chosen = check_columns(where, columns, schema.names)
    if others:
        chosen += [field.name for field in schema if field.name not in chosen and not _is_binary(field.type)]
    return chosen


def _is_binary(kind: pa.DataType) -> bool:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(_is_binary(kind.field(child).type) for child in range(kind.num_fields))


def _pick(row: Any, where: str, columns: Sequence[str], others: bool) -> Row:
    """Return the given columns of a row, or all of them."""
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: is not a JSON object with the columns {', '.join(columns)}")
    chosen = check_columns(where, columns, list(row))
    return row if others else {name: row[name] for name in chosen}


def _load_json_list(path: str) -> list[Any]:
    try:
        rows: list[Any] = json.loads(Path(path).read_bytes(), object_pairs_hook=_without_repetition)
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    return rows


def _without_repetition(pairs: list[tuple[str, Any]]) -> Row:
    """Return an object of JSON, of which Python would keep the last of equal names."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {repeated!r} occurs twice in an object")
    return row


def _load_csv(path: str) -> list[Row]:
    """Return the rows of a file below its header."""
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if Path(path).suffix == ".tsv" else ","
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header, *lines = [line for line in csv.reader(file, delimiter=delimiter, strict=True) if line] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not a CSV file: {error}") from error
    if len(set(header)) < len(header):
        raise ConfigError(f"{path}: its header names a column twice: {', '.join(header)}")
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise ConfigError(f"{path}, row {number}: has {len(line)} values; its header names {len(header)} columns")
    return [dict(zip(header, line, strict=True)) for line in lines]


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


def _filled_lines(path: str) -> tuple[tuple[int, int], ...]:
    """Return number, from 1, and byte offset of the end of each line that is not blank.

    The last line may lack a line feed.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        content = np.frombuffer(memory, np.uint8)
        ends = np.flatnonzero(content == ord("\n")) + 1
        if not len(ends) or ends[-1] != len(content):
            ends = np.append(ends, len(content))
        starts = np.concatenate([[0], ends[:-1]])
        is_filled = ~np.isin(content[starts], np.frombuffer(b" \t\r\n", np.uint8))
        for line in np.flatnonzero(~is_filled):  # it may be indented
            is_filled[line] = bool(memory[starts[line] : ends[line]].strip())
        del content  # the map cannot be closed while an array refers to it
    numbers = np.flatnonzero(is_filled)
    return tuple(zip((numbers + 1).tolist(), ends[numbers].tolist(), strict=True))
