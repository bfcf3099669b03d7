"""The journal of a group's swaps, which a lost worker's successor and a resumed run repeat."""

import json
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from embodyflow.data.rows_file import make_folder_of
from embodyflow.data.streaming.swaps import Swap
from embodyflow.process.files.durable_files import whole_lines, write_durably


class SwapJournal:
    """The swaps of a group, in a file of JSON lines that is written before the tokens count.

    Args:
        path: Path of the file, which :meth:`create` makes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        head, *lines = [json.loads(line) for line in whole_lines(path.read_bytes())]
        self._first: int = head["first"]
        self._is_complete: bool = head["is_complete"]
        self._known: dict[int, dict[int, int]] = {}
        for line in lines:
            self._add(Swap(*line))

    @classmethod
    def create(cls, path: Path, first: int, recorded: Iterable[Swap] | None) -> "SwapJournal":
        """Return the journal of a group, and go on with what an earlier attempt left.

        Args:
            path: Path of the file.
            first: Version that the group begins with.
            recorded: All swaps of the group, of which it must have no others; ``None`` lets it have any.
        """
        left = whole_lines(path.read_bytes()) if path.exists() and recorded is None else []
        if not left:
            head = {"first": first, "is_complete": recorded is not None}
            left = [json.dumps(line).encode() for line in (head, *(list(each) for each in recorded or ()))]
        make_folder_of(path)
        write_durably(path, "".join(f"{line.decode()}\n" for line in left))  # without a part of a line that a kill left
        return cls(path)

    def recorded(self, seed: int, token: int) -> int | None:
        """Return the recorded version of a token, or ``None`` if any may sample it: after the last recorded swap."""
        known = self._known.get(seed, {})
        if not self._is_complete and token > max(known, default=-1):
            return None
        return self._version(seed, token)

    def add(self, seed: int, token: int, version: int) -> None:
        """Record that a version samples the tokens from this one on, unless that is recorded already."""
        if self._is_complete or self._version(seed, token) == version:
            return
        swap = Swap(seed, token, version)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(list(swap)) + "\n")
        self._add(swap)

    def _version(self, seed: int, token: int) -> int:
        """Return the version of a token if no further swap comes before it."""
        known = self._known.get(seed, {})
        starts = sorted(known)
        place = bisect_right(starts, token)
        return known[starts[place - 1]] if place else self._first

    def swaps(self) -> tuple[Swap, ...]:
        """Return all swaps, in order of seeds and tokens."""
        return tuple(
            Swap(seed, token, version)
            for seed, known in sorted(self._known.items())
            for token, version in sorted(known.items())
        )

    @property
    def newest(self) -> int:
        """Newest version that has sampled a token."""
        return max((swap.version for swap in self.swaps()), default=self._first)

    def _add(self, swap: Swap) -> None:
        self._known.setdefault(swap.seed, {})[swap.token] = swap.version
