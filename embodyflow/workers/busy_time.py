"""The time that the ranks of a group spend on nodes, to tell how much of it they are idle."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

Period = tuple[float, float]
"""Begin and end, by ``time.perf_counter()``."""


class BusyTime:
    """Records when each rank of a group is at work.

    Args:
        num_ranks: Number of ranks.
    """

    def __init__(self, num_ranks: int) -> None:
        self._done: list[list[Period]] = []
        self._begun: list[list[float]] = []
        self._joined: list[float] = []  # when each rank came to the group
        self.resize(num_ranks)

    def resize(self, num_ranks: int) -> None:
        """Forget the ranks from ``num_ranks`` on, or note that further ones have come to the group."""
        for each in (self._done, self._begun, self._joined):
            del each[num_ranks:]
        while len(self._done) < num_ranks:
            self._done.append([])
            self._begun.append([])
            self._joined.append(time.perf_counter())

    @contextmanager
    def at_work(self, rank: int) -> Iterator[None]:
        """Record that a rank is at work within the block; blocks may overlap."""
        begun, begun_before, done = time.perf_counter(), self._begun[rank], self._done[rank]
        begun_before.append(begun)
        try:
            yield
        finally:
            begun_before.remove(begun)
            done.append((begun, time.perf_counter()))

    def idle_share(self, since: float, until: float) -> float:
        """Return the share of a period in which ranks had no work, as a mean over ranks; forget what was before it.

        A rank counts from the moment on when it came to the group, weighted by that time.
        """
        busy, present = 0.0, 0.0
        for done, begun, joined in zip(self._done, self._begun, self._joined, strict=True):
            done[:] = [period for period in done if period[1] > since]
            first = max(since, joined)
            busy += covered([*done, *((each, until) for each in begun)], first, until)
            present += max(until - first, 0.0)
        return 1.0 - busy / present if present > 0 else 0.0


def covered(periods: list[Period], since: float, until: float) -> float:
    """Return how many seconds between two moments are in at least one of the periods."""
    total, reached = 0.0, since
    for begin, end in sorted(periods):
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            total, reached = total + end - begin, end
    return total
