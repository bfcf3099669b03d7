"""Rows on disk: whole shards, and pieces of one as they are made.

Both use the layout of :mod:`embodyflow.data.table_packing`. Writing does not wait for the disk: what a process wrote outlives
the process, and whoever needs it to outlive a power failure flushes the file.
"""

import hashlib
import os
from pathlib import Path

from embodyflow.data.table_packing import Packing, unpack
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import DamageError

_LENGTH_BYTES, _DIGEST_BYTES = 8, 32


def write_rows(path: Path, table: Table) -> None:
    """Write a shard; a reader finds all of it or no such file."""
    aside = path.with_name(f".{path.name}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    aside.write_bytes(_pack(table))
    os.replace(aside, path)


def read_rows(path: Path, digest: str) -> Table:
    """Read a shard; the arrays are the caller's.

    Args:
        path: that :func:`write_rows` wrote to.
        digest: of the columns, by :func:`~embodyflow.data.tables.digest_of`.

    Raises:
        FileNotFoundError: it was never written.
        DamageError: it does not hold these columns.
    """
    try:
        table = unpack(bytearray(path.read_bytes()))
        intact = digest_of(table) == digest
    except (ValueError, TypeError, IndexError, MemoryError, OverflowError):  # the layout itself makes no sense
        intact = False
    if not intact:
        raise DamageError(f"{path} does not hold the rows of digest {digest[:12]}")
    return table


class Journal:
    """Pieces of a shard in one file, each counting as soon as it is whole.

    Args:
        path: of the file, made with the first piece.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Table]:
        """Return the whole pieces, in order; what a killed process left of another is cut off."""
        content = self._path.read_bytes() if self._path.exists() else b""
        pieces, end = [], 0
        while (piece := _piece_at(content, end)) is not None:
            pieces.append(unpack(bytearray(piece)))
            end += _LENGTH_BYTES + _DIGEST_BYTES + len(piece)
        if end < len(content):
            os.truncate(self._path, end)
        return pieces

    def append(self, table: Table) -> None:
        """Add a piece."""
        packed = _pack(table)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(packed).digest() + packed)

    def replace(self, table: Table) -> None:
        """Make this its only piece, in one step."""
        aside = Journal(self._path.with_name(f".{self._path.name}"))
        aside._path.unlink(missing_ok=True)
        aside.append(table)
        os.replace(aside._path, self._path)


def _pack(table: Table) -> bytearray:
    packing = Packing(table)
    memory = bytearray(packing.num_bytes)
    packing.write(memory, key=1)
    return memory


def _piece_at(content: bytes, start: int) -> bytes | None:
    """Return the piece that starts there, ``None`` where none is whole."""
    head = start + _LENGTH_BYTES + _DIGEST_BYTES
    length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
    piece = content[head : head + length]
    digest = content[start + _LENGTH_BYTES : head]
    return piece if len(piece) == length > 0 and hashlib.sha256(piece).digest() == digest else None
