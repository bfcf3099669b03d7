"""How far the clocks of other machines are from this one's, for the trace of a run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from embodyflow.process.tracing import machine, trace_file

ROUNDS = 9
"""Number of times that a clock is asked. The fastest answer counts, since its time is known best."""

Ask = Callable[[], Awaitable[tuple[str, int]]]
"""Asks another process for its machine and its monotonic clock in ns."""


async def record_clocks(asks: Iterable[Ask]) -> None:
    """Record the offsets of the clocks of other machines, if this process records a trace."""
    if (file := trace_file()) is None:
        return
    for name, offset in await asyncio.gather(*(clock_offset(ask) for ask in asks)):
        if name != machine():  # processes of one machine share the clock
            file.describe("clock_offset", {"machine": name, "microseconds": offset})


async def clock_offset(ask: Ask) -> tuple[str, int]:
    """Return the machine of a process, and by how many µs its clock is ahead of this one's.

    The clock is taken to be read halfway between the question and the answer, so the error is at most half of the
    fastest round trip.
    """
    best: tuple[int, str, int] | None = None
    for _ in range(ROUNDS):
        asked = time.monotonic_ns()
        name, theirs = await ask()
        answered = time.monotonic_ns()
        offset = theirs - (asked + answered) // 2
        best = min(best, (answered - asked, name, offset)) if best else (answered - asked, name, offset)
    assert best is not None
    return best[1], best[2] // 1000
