"""Records of equal size in files that only grow, memory-mapped unless a subclass reads them otherwise.

Commits refer to the files by number, length and digest. What was appended after a commit is cut when the records are
opened at that commit, so appending again gives the same files.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from embodyflow.errors import DamageError
from embodyflow.process.files.durable_files import flush, make_folder, write_durably

Array = np.ndarray[Any, np.dtype[Any]]

STATE_FILE = "replay.json"
"""Name of the file in the folder with the state of the last commit, by which other runs read the records."""

PIECE_BYTES = 2**20
"""Bytes of a file that are hashed at a time."""


class Segments:
    """Records by their index in the order in which they were appended.

    Args:
        folder: Folder of the files.
        dtype: Type of a record.
        size: Records per file.

    Attributes:
        first: Index of the first record that is still kept.
        record: Name of a record in the names of files and in errors.
    """

    record: ClassVar[str] = "transition"

    def __init__(self, folder: Path, dtype: np.dtype[Any], size: int) -> None:
        self._folder, self._dtype, self._size = folder, dtype, size
        self.first, self._length = 0, 0
        self._maps: dict[int, Array] = {}
        self._digests: dict[int, Any] = {}
        self._unflushed: set[int] = set()

    @classmethod
    def create(cls, folder: Path, dtype: np.dtype[Any], size: int) -> Self:
        """Return segments without records; remove the files that an attempt before the first commit left."""
        segments = cls(folder, dtype, size)
        make_folder(folder)
        segments._cut()
        return segments

    @classmethod
    def open(cls, folder: Path, dtype: np.dtype[Any], state: Mapping[str, Any], *, cut: bool) -> Self:
        """Return the records of a commit.

        Args:
            folder: Folder of the files.
            dtype: Type of a record.
            state: State that :meth:`commit` returned.
            cut: Remove what was appended after the commit; otherwise nothing is written.

        Raises:
            DamageError: A file is missing, too short or changed, or its records are of another type.
        """
        if state["record_bytes"] != dtype.itemsize:
            raise DamageError(f"{folder}: a {cls.record} has {state['record_bytes']} bytes, not {dtype.itemsize}")
        segments = cls(folder, dtype, state["segment_size"])
        segments.first, segments._length = state["first"], state["length"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the interpreter's lock
            for number, found in pool.map(segments._verified, state["digests"].items()):
                segments._digests[number] = found
                segments._extended(number)
        if cut:
            segments._cut()
        return segments

    def __len__(self) -> int:
        """Return the number of records that were ever appended, dropped ones included."""
        return self._length

    def append(self, records: Array) -> None:
        """Append records ``[n]``; they survive a power failure after the next :meth:`commit`."""
        while len(records):
            number, start = divmod(self._length, self._size)
            part, records = records[: self._size - start], records[self._size - start :]
            content = part.view(np.uint8).data
            with self._path(number).open("r+b" if start else "wb") as file:
                file.seek(start * self._dtype.itemsize)
                file.write(content)
            self._digests.setdefault(number, hashlib.sha256()).update(content)
            self._unflushed.add(number)
            self._length += len(part)
            self._extended(number)

    def read(self, indices: Array) -> Array:
        """Return copies of the records with these indices, int64 ``[n]``.

        Raises:
            IndexError: An index is of no record, or of one that was dropped.
        """
        self._require_kept(indices)
        records = np.empty(len(indices), self._dtype)
        numbers, rows = np.divmod(indices, self._size)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            records[mine] = self._maps[number][rows[mine]]
        return records

    def commit(self, facts: Mapping[str, Any], oldest: int) -> dict[str, Any]:
        """Flush what is new to the disk with a state file; return the state by which :meth:`open` finds it again.

        Args:
            facts: JSON-able facts to add to the state.
            oldest: Index of the oldest record that is needed from now on.
        """
        state = {**facts, **self.flush_new(oldest)}
        write_durably(self._folder / STATE_FILE, json.dumps(state, indent=1) + "\n")
        return state

    def flush_new(self, oldest: int) -> dict[str, Any]:
        """Flush what is new to the disk; return the state by which :meth:`open` finds the records again.

        Args:
            oldest: Index of the oldest record that is needed from now on.
        """
        for number in sorted(self._unflushed):
            flush(self._path(number))
        flush(self._folder)
        self._unflushed.clear()
        needed = [number for number in sorted(self._digests) if (number + 1) * self._size > oldest]
        return {
            "record_bytes": self._dtype.itemsize,
            "segment_size": self._size,
            "first": needed[0] * self._size if needed else self._length,
            "length": self._length,
            "digests": {str(number): self._digests[number].hexdigest() for number in needed},
        }

    def digests(self) -> list[str]:
        """Return the SHA-256 of the records in each file."""
        return [self._digests[number].hexdigest() for number in sorted(self._digests)]

    def first_of_file(self, index: int) -> int:
        """Return the index of the first record in the file of a record."""
        return index // self._size * self._size

    def drop_before(self, index: int) -> None:
        """Remove the files that only have records before ``index``."""
        for number, path in self._files():
            if (number + 1) * self._size <= index:
                self._maps.pop(number, None)
                self._digests.pop(number, None)
                path.unlink()
                self.first = max(self.first, (number + 1) * self._size)

    def _verified(self, digest: tuple[str, str]) -> tuple[int, Any]:
        """Return the number of a file and the hash of a commit's records in it, after a comparison with the digest."""
        number = int(digest[0])
        path, left = self._path(number), self._rows(number) * self._dtype.itemsize
        if not path.is_file() or path.stat().st_size < left:
            raise DamageError(f"{path} is missing or too short")
        found, piece = hashlib.sha256(), memoryview(bytearray(min(PIECE_BYTES, left)))
        with path.open("rb", buffering=0) as file:
            while left and (count := file.readinto(piece[:left])):
                found.update(piece[:count])
                left -= count
        if found.hexdigest() != digest[1]:
            raise DamageError(f"{path} is damaged")
        return number, found

    def _extended(self, number: int) -> None:
        """Make the records of a file readable that has new ones."""
        self._maps[number] = np.memmap(self._path(number), self._dtype, "r", shape=(self._rows(number),))

    def _rows(self, number: int) -> int:
        """Return the number of records in a file."""
        return min(self._length - number * self._size, self._size)

    def _require_kept(self, indices: Array) -> None:
        if len(indices) and not (self.first <= indices.min() and indices.max() < self._length):
            raise IndexError(f"{self.record}s {self.first} to {self._length - 1} are kept")

    def _cut(self) -> None:
        """Cut the last file to its records, and remove those after it."""
        for number, path in self._files():
            kept = max(self._length - number * self._size, 0) * self._dtype.itemsize
            if kept == 0:
                path.unlink()
            elif path.stat().st_size > kept and kept < self._size * self._dtype.itemsize:
                os.truncate(path, kept)
        flush(self._folder)

    def _files(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in self._folder.glob(f"*.{self.record}s"))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.{self.record}s"


def state_in(folder: Path) -> dict[str, Any]:
    """Return the state of the last commit of the records in a folder.

    Raises:
        DamageError: The folder has none, or it is not whole.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    except (FileNotFoundError, ValueError) as error:
        raise DamageError(f"{folder / STATE_FILE} is missing or damaged") from error
    return state
