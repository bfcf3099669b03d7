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
        self._done: list[list[Period]] = [[] for _ in range(num_ranks)]
        self._begun: list[list[float]] = [[] for _ in range(num_ranks)]

    @contextmanager
    def at_work(self, rank: int) -> Iterator[None]:
        """Record that a rank is at work within the block; blocks may overlap."""
        begun = time.perf_counter()
        self._begun[rank].append(begun)
        try:
            yield
        finally:
            self._begun[rank].remove(begun)
            self._done[rank].append((begun, time.perf_counter()))

    def idle_share(self, since: float, until: float) -> float:
        """Return the share of a period in which ranks had no work, as a mean over ranks; forget what was before it."""
        if until <= since:
            return 0.0
        busy = 0.0
        for done, begun in zip(self._done, self._begun, strict=True):
            done[:] = [period for period in done if period[1] > since]
            busy += covered([*done, *((each, until) for each in begun)], since, until)
        return 1.0 - busy / (len(self._done) * (until - since))


def covered(periods: list[Period], since: float, until: float) -> float:
    """Return how many seconds between two moments are in at least one of the periods."""
    total, reached = 0.0, since
    for begin, end in sorted(periods):
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            total, reached = total + end - begin, end
    return total
