"""Files of rows: whole shards, and journals of the pieces of a shard.

Both use the layout of :mod:`embodyflow.data.table_packing`. Writing does not flush to disk: the files survive the
process that wrote them; callers that need them to survive a power failure flush them.
"""

import hashlib
import os
from pathlib import Path

from embodyflow.data.table_packing import Packing, unpack
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import DamageError

_LENGTH_BYTES, _DIGEST_BYTES = 8, 32

_LEVELS = 3
"""Depth of a node's rows in the folder of a run, ``stages/<iteration>/<node>``."""


def write_rows(path: Path, table: Table) -> None:
    """Write a shard atomically: a reader finds the complete file or none."""
    temporary = path.with_name(f".{path.name}")
    make_folder_of(temporary)
    temporary.write_bytes(_pack(table))
    os.replace(temporary, path)


def read_rows(path: Path, digest: str) -> Table:
    """Read a shard into arrays that the caller may write to.

    Args:
        path: File written by :func:`write_rows`.
        digest: Digest of the columns from :func:`~embodyflow.data.tables.digest_of`.

    Raises:
        FileNotFoundError: The file does not exist.
        DamageError: The file does not hold the columns of this digest.
    """
    try:
        table = unpack(bytearray(path.read_bytes()))
        intact = digest_of(table) == digest
    except (ValueError, TypeError, IndexError, MemoryError, OverflowError):  # the layout itself is damaged
        intact = False
    if not intact:
        raise DamageError(f"{path} does not hold the rows with digest {digest[:12]}")
    return table


class Journal:
    """A file of pieces of a shard, each valid as soon as it is complete.

    Args:
        path: Path of the file, which the first piece creates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Table]:
        """Return the complete pieces, in order; truncate the file after them, where a killed process left a part."""
        content = self._path.read_bytes() if self._path.exists() else b""
        pieces, end = [], 0
        while (piece := _piece_at(content, end)) is not None:
            pieces.append(unpack(bytearray(piece)))
            end += _LENGTH_BYTES + _DIGEST_BYTES + len(piece)
        if end < len(content):
            os.truncate(self._path, end)
        return pieces

    def beside(self, name: str) -> Path:
        """Return the path of another file of the same rows, which is deleted with this one: ``<stem>.<name>.parts``."""
        return self._path.with_name(f"{self._path.stem}.{name}{self._path.suffix}")

    def append(self, table: Table) -> None:
        """Append a piece."""
        packed = _pack(table)
        make_folder_of(self._path)
        with self._path.open("ab") as file:
            file.write(len(packed).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(packed).digest() + packed)

    def replace(self, table: Table) -> None:
        """Replace all pieces by one, atomically."""
        temporary = Journal(self._path.with_name(f".{self._path.name}"))
        temporary._path.unlink(missing_ok=True)
        temporary.append(table)
        os.replace(temporary._path, self._path)


def make_folder_of(path: Path) -> None:
    """Create the folder of a file. The folder of a run that was deleted stays deleted: ``FileNotFoundError``."""
    for folder in reversed(path.parents[:_LEVELS]):
        folder.mkdir(exist_ok=True)


def _pack(table: Table) -> bytearray:
    packing = Packing(table)
    memory = bytearray(packing.num_bytes)
    packing.write(memory, key=1)
    return memory


def _piece_at(content: bytes, start: int) -> bytes | None:
    """Return the piece that begins at ``start``; ``None`` if there is no complete piece."""
    head = start + _LENGTH_BYTES + _DIGEST_BYTES
    length = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
    piece = content[head : head + length]
    digest = content[start + _LENGTH_BYTES : head]
    return piece if len(piece) == length > 0 and hashlib.sha256(piece).digest() == digest else None
