"""The ledger of a run: what counts as done, in the order in which it was.

A text file, one JSON object a line. Each line ends with the SHA-256 over the line before it and its own content, so no
line can be changed, dropped or put elsewhere unnoticed. A line counts from the moment :meth:`Ledger.append` returns: it
is on the disk then. What a killed process, a full disk or a power failure left of a line that was being written is cut
off before the next one; nothing had counted on it.

The lines say which stages are kept on disk and which iterations are committed, by digests. Nothing in them depends on
time, processes or attempts, so a run that was disturbed has the ledger of one that was not.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from embodyflow.errors import DamageError
from embodyflow.process.durable_files import flush, whole_lines

_BEGINNING = "0" * 64


class Entry(NamedTuple):
    """One line.

    Attributes:
        kind: ``stage`` or ``commit``.
        iteration: that it belongs to.
        facts: what it says.
    """

    kind: str
    iteration: int
    facts: dict[str, Any]


class Ledger:
    """Reads the lines and appends to them; one process at a time.

    Args:
        path: of the file, made when missing.

    Raises:
        DamageError: a line is not what was written; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[Entry] = []
        self._newest: dict[tuple[int, str, str], dict[str, Any]] = {}
        self._last = _BEGINNING
        lines = whole_lines(path.read_bytes()) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            self._add(self._read(number, line))
        self._num_bytes = sum(len(line) + 1 for line in lines)
        self._has_name = False

    def append(self, kind: str, iteration: int, facts: dict[str, Any]) -> None:
        """Add a line and have it on the disk before returning."""
        content = json.dumps({"kind": kind, "iteration": iteration, **facts}, sort_keys=True, separators=(",", ":"))
        digest = _digest(self._last, content)
        line = f"{content}\t{digest}\n".encode()
        with self._path.open("ab") as file:
            file.truncate(self._num_bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not self._has_name:  # of an earlier process nobody knows how far it came
            flush(self._path.parent)
            self._has_name = True
        self._num_bytes += len(line)
        self._last = digest
        self._add(Entry(kind, iteration, facts))

    def newest(self, kind: str, iteration: int, node_id: str = "") -> dict[str, Any] | None:
        """Return what the newest line says of a commit, or of a node's stage; ``None`` where there is no such line."""
        return self._newest.get((iteration, kind, node_id))

    def digest(self) -> str:
        """Return the SHA-256 over what the newest lines say, whatever the order in which branches finished."""
        return hashlib.sha256(json.dumps(sorted(self._newest.items()), sort_keys=True).encode()).hexdigest()

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._newest[entry.iteration, entry.kind, str(entry.facts.get("node_id", ""))] = entry.facts

    def _read(self, number: int, line: bytes) -> Entry:
        content, _, digest = line.decode(errors="replace").rpartition("\t")
        if digest != _digest(self._last, content):
            raise DamageError(
                f"{self._path}: line {number} is not what was written; restore the file, or start the run anew"
            )
        self._last = digest
        facts = json.loads(content)
        return Entry(facts.pop("kind"), facts.pop("iteration"), facts)


def _digest(previous: str, content: str) -> str:
    return hashlib.sha256(f"{previous}{content}".encode()).hexdigest()
