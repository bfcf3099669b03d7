"""The ledger of a run: which stages and iterations are committed, in the order of their commits.

A text file with one JSON object per line. Each line ends with the SHA-256 of the previous digest and its own content,
so a line that is changed, dropped or moved is noticed. A line counts when :meth:`Ledger.append` returns: it is on disk
then. A kill, a full disk or a power failure may leave part of a line, which the next append cuts off.

The lines hold digests of the stages on disk and of the committed iterations, and the metrics of iterations and
evaluations, from which ``metrics.jsonl`` is rebuilt. Nothing in them depends on time, processes
or attempts, so a run with failures has the same ledger as one without. There are three exceptions. With
``rollout.order=first_ready`` lines of the kind ``groups`` name the groups that each iteration trains on, and the run
repeats what they say. With ``rollout.autoscale`` it likewise repeats lines of the kind ``workers``, the number of
rollout workers of each iteration. Alarms of detectors of health that read times depend on them, and the digest leaves
them out.

A line of the kind ``roll_back`` makes the lines of all iterations after the one that it returns to void, except the
numbers of workers: half-finished rollouts, which may be kept, are shared by so many. It is done once that iteration's
commit stands in a line after it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from embodyflow.errors import DamageError
from embodyflow.process.files.durable_files import flush, whole_lines

_BEGINNING = "0" * 64


class Entry(NamedTuple):
    """One line of the ledger.

    Attributes:
        kind: ``stage``, ``groups``, ``workers``, ``commit``, ``evaluation``, ``alarm``, ``answer``, ``roll_back`` or,
            once in a branch, ``branch``.
        iteration: Index of the iteration.
        facts: Content of the line.
    """

    kind: str
    iteration: int
    facts: dict[str, Any]


class Ledger:
    """Reads the lines and appends to them, in one process at a time.

    Args:
        path: The file, created with the first line.

    Raises:
        DamageError: A line is damaged; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[Entry] = []
        self._newest: dict[tuple[int, str, str], dict[str, Any]] = {}
        self._last = _BEGINNING
        content = path.read_bytes() if path.exists() else b""
        lines = whole_lines(content)
        for number, line in enumerate(lines, start=1):
            self._add(self._read(number, line))
        self._num_bytes = sum(len(line) + 1 for line in lines)
        rest, _, more = content[self._num_bytes :].partition(b"\0")
        if more.strip(b"\0") and self._is_whole(rest):  # a line was appended after it, so its end was on disk once
            raise self._damage(len(lines) + 1)
        self._has_name = False

    def append(self, kind: str, iteration: int, facts: dict[str, Any]) -> None:
        """Append a line and wait until it is on disk."""
        content = json.dumps({"kind": kind, "iteration": iteration, **facts}, sort_keys=True, separators=(",", ":"))
        digest = _digest(self._last, content)
        line = f"{content}\t{digest}\n".encode()
        with self._path.open("ab") as file:
            file.truncate(self._num_bytes)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not self._has_name:  # an earlier process may have been killed before it flushed the name
            flush(self._path.parent)
            self._has_name = True
        self._num_bytes += len(line)
        self._last = digest
        self._add(Entry(kind, iteration, facts))

    def newest(self, kind: str, iteration: int, part: str = "") -> dict[str, Any] | None:
        """Return the newest facts of a kind, if they are not void; ``None`` without such a line.

        Args:
            kind: Kind of the line.
            iteration: Index of the iteration.
            part: Node of a stage, or detector of an alarm or an answer.
        """
        return self._newest.get((iteration, kind, part))

    def alarms(self, last: int) -> dict[int, list[dict[str, Any]]]:
        """Return the facts of the alarms up to an iteration, by iteration in order."""
        found: dict[int, list[dict[str, Any]]] = {}
        for (iteration, kind, _), facts in self._newest.items():
            if kind == "alarm" and iteration <= last:
                found.setdefault(iteration, []).append(facts)
        return dict(sorted(found.items()))

    def roll_backs(self) -> list[Entry]:
        """Return the lines of all roll-backs, oldest first."""
        return [entry for entry in self.entries if entry.kind == "roll_back"]

    def values_after(self, commit: int) -> dict[str, Any]:
        """Return the values that roll-backs gave to keys, as the run went on with them after a commit that it kept.

        Args:
            commit: Index of the iteration.
        """
        lines = self.roll_backs()
        number = max((index for index, line in enumerate(lines, start=1) if line.facts["to"] <= commit), default=0)
        return {key: value for line in lines[:number] for key, value in line.facts["values"].items()}

    def digest(self) -> str:
        """Return the SHA-256 of the newest facts, independent of the order in which branches of the graph finished."""
        repeatable = [(key, facts) for key, facts in sorted(self._newest.items()) if not facts.get("timed")]
        return hashlib.sha256(json.dumps(repeatable, sort_keys=True).encode()).hexdigest()

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.kind == "roll_back":
            self._make_void(entry.facts["to"])
        part = entry.facts.get("node_id") or entry.facts.get("detector") or ""
        self._newest[entry.iteration, entry.kind, str(part)] = entry.facts

    def _make_void(self, after: int) -> None:
        """Forget the lines of all later iterations, except those of roll-backs and workers, and the commit of this one.

        The commit is recorded again once the run has returned to it.
        """
        kept = {"roll_back", "workers"}
        self._newest = {
            key: facts
            for key, facts in self._newest.items()
            if key[1] in kept or (key[0] <= after and key[:2] != (after, "commit"))
        }

    def _read(self, number: int, line: bytes) -> Entry:
        if not self._is_whole(line):
            raise self._damage(number)
        content, _, self._last = line.decode(errors="replace").rpartition("\t")
        facts = json.loads(content)
        return Entry(facts.pop("kind"), facts.pop("iteration"), facts)

    def _is_whole(self, line: bytes) -> bool:
        content, _, digest = line.decode(errors="replace").rpartition("\t")
        return digest == _digest(self._last, content)

    def _damage(self, number: int) -> DamageError:
        return DamageError(f"{self._path}: line {number} is damaged; restore the file, or start another run")


def _digest(previous: str, content: str) -> str:
    return hashlib.sha256(f"{previous}{content}".encode()).hexdigest()
