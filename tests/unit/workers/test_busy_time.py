"""The share of time in which ranks are idle, and the clocks of other machines."""

import asyncio
import time

import pytest

from embodyflow.process.tracing import machine
from embodyflow.workers import busy_time
from embodyflow.workers.busy_time import BusyTime, covered
from embodyflow.workers.clocks import clock_offset


@pytest.mark.parametrize(
    ("periods", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(1.0, 3.0), (2.0, 4.0)], 3.0),  # nodes without a model run beside others
        ([(2.0, 4.0), (1.0, 9.0), (5.0, 6.0)], 8.0),
        ([(-5.0, 2.0), (8.0, 20.0)], 4.0),
    ],
)
def test_covered_time_counts_once(periods: list[tuple[float, float]], seconds: float) -> None:
    assert covered(periods, 0.0, 10.0) == pytest.approx(seconds)


class Clock:
    """A clock that a test moves on, in place of the processor's."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(busy_time, "time", clock)
    return clock


def test_work_in_flight_counts_as_far_as_it_has_come(clock: Clock) -> None:
    busy = BusyTime(2)
    with busy.at_work(0):
        clock.now += 2
        assert busy.idle_share(100, clock.now) == pytest.approx(0.5)
        assert busy.idle_share(100, 101) == pytest.approx(0.5)
    clock.now += 3
    assert busy.idle_share(100, clock.now) == pytest.approx(0.8)
    assert busy.idle_share(102, clock.now) == 1.0
    assert busy.idle_share(clock.now, clock.now) == 0.0


def test_a_rank_counts_from_the_moment_when_it_comes(clock: Clock) -> None:
    busy = BusyTime(1)
    with busy.at_work(0):
        clock.now += 2
        busy.resize(2)
        assert busy.idle_share(100, clock.now) == 0.0
        clock.now += 2
        assert busy.idle_share(100, clock.now) == pytest.approx(2 / 6)
        with busy.at_work(1):
            busy.resize(1)  # it ends in the middle of its work
        clock.now += 2
    assert busy.idle_share(100, clock.now) == 0.0


def test_the_offset_of_a_clock_is_that_of_the_fastest_answer() -> None:
    delays = iter([0.02, 0.0, 0.01, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0])

    async def ask() -> tuple[str, int]:
        await asyncio.sleep(next(delays))  # before the clock is read, so slow answers seem late
        return "there", time.monotonic_ns() + 3_000_000_000

    name, offset = asyncio.run(clock_offset(ask))
    assert name == "there" and abs(offset - 3_000_000) < 3000
    assert machine() == machine() != "there"
