"""A discrete-event simulation of jobs that run in lanes and share the cores of a machine.

A job takes ``seconds`` with cores to itself, and keeps ``computing / seconds`` cores busy meanwhile, its demand d; the
rest of its time it waits. If the running jobs want more cores than there are, each process gets an equal share of
them, as the kernel's scheduler divides them: a job of p processes gets min(d, λ p) cores, with the largest λ that the
cores allow, and proceeds at the rate min(1, λ p / d). So four workers on two cores take twice as long as on four, and a
job that only waits is not held up. Between events the rates are constant.

Processes that take turns on a core also evict one another's data from its caches, so the same work takes more CPU
seconds (:meth:`~.machine.Machine.dilation`). Then d grows by the same factor, up to p.

The ranks of a job in lockstep wait for one another at every exchange. They compute at the same time, and while messages
are on their way none of them does, so nothing hides the one time in the other. p ranks that compute for u seconds each
and wait for W on c cores, which they have to themselves, take W + u · max(p / c, 1), where ranks that do not wait for
one another take max(W + u, p u / c).

Services compute beside all jobs and want the same number of cores all the time.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodyflow.forecast.machine import NO_LIMIT, Machine

_DONE = 1e-9
"""Share of a stretch that is left when it counts as done: rates are sums and quotients of floats."""
ROUNDS = 8
"""Rounds of a job in lockstep. A real one has more, and its time does not depend on how many."""


@dataclass(frozen=True)
class Job:
    """A piece of work.

    Attributes:
        name: Name that pictures show.
        lanes: Lanes of which it takes the first that is free, in this order; a lane runs one job at a time. Empty for
            a job that runs beside others.
        seconds: How long it takes with cores to itself.
        computing: CPU seconds of it.
        after: Positions of the jobs that end before it begins, all smaller than its own.
        processes: Number of processes that do it.
        lockstep: Whether its processes compute at the same time, and then all wait, by turns.
    """

    name: str
    lanes: tuple[str, ...]
    seconds: float
    computing: float = 0.0
    after: tuple[int, ...] = ()
    processes: int = 1
    lockstep: bool = False

    def stretches(self) -> list["Stretch"]:
        """Return its stretches of constant demand, in their order."""
        if self.seconds <= 0:
            return []
        alone = self.computing / self.processes
        if not self.lockstep or not 0 < alone < self.seconds:
            return [Stretch(self.seconds, self.computing / self.seconds, self.processes)]
        parts = ((alone, self.processes), (self.seconds - alone, 0))
        return [Stretch(each / ROUNDS, demand, self.processes) for each, demand in parts] * ROUNDS


@dataclass(frozen=True)
class Stretch:
    """A part of a job.

    Attributes:
        seconds: How long it takes with cores to itself.
        demand: Cores that it keeps busy, d.
        processes: Number of processes that do it, p.
    """

    seconds: float
    demand: float
    processes: int


@dataclass(frozen=True)
class Period:
    """When a job ran.

    Attributes:
        begin, end: Seconds since the start.
        lane: Lane that ran it; ``None`` for a job that ran beside others.
    """

    begin: float
    end: float
    lane: str | None


def simulate(jobs: Sequence[Job], machine: Machine = NO_LIMIT) -> list[Period]:
    """Return when each job runs. Of jobs that wait for the same lane, the first in the sequence goes first.

    Args:
        jobs: Jobs; each comes after those that it waits for.
        machine: Cores that they share.

    Raises:
        ValueError: A job waits for itself or for a later one, or there are no cores.
    """
    return _Simulation(jobs, machine).run()


class _Simulation:
    def __init__(self, jobs: Sequence[Job], machine: Machine) -> None:
        if machine.cores <= 0:
            raise ValueError(f"cores={machine.cores:g}: must be above 0")
        self._jobs, self._machine, self._now = jobs, machine, 0.0
        self._missing = [len(set(job.after)) for job in jobs]  # jobs that each still waits for
        self._followers: dict[int, list[int]] = defaultdict(list)
        for index, job in enumerate(jobs):
            if any(not 0 <= before < index for before in job.after):
                raise ValueError(f"{job.name}: may only wait for earlier jobs")
            for before in set(job.after):
                self._followers[before].append(index)
        self._ready = [index for index, missing in enumerate(self._missing) if not missing]  # a heap, by position
        self._ahead: dict[int, list[Stretch]] = {}  # stretches of the running jobs, the current one last
        self._left: dict[int, float] = {}  # seconds of the current ones that are left at full speed
        self._lane_of: dict[int, str | None] = {}
        self._taken: set[str] = set()
        self._begun: dict[int, float] = {}
        self._periods: dict[int, Period] = {}

    def run(self) -> list[Period]:
        self._begin_jobs()
        while self._left:
            rates = _rates([self._ahead[index][-1] for index in self._left], self._machine)
            pace = dict(zip(self._left, rates, strict=True))
            step = min(left / pace[index] for index, left in self._left.items())
            self._now += step
            for index in self._left:
                self._left[index] -= pace[index] * step
            for index in [
                index for index, left in self._left.items() if left <= _DONE * self._ahead[index][-1].seconds
            ]:
                self._go_on(index)
            self._begin_jobs()
        return [self._periods[index] for index in range(len(self._jobs))]

    def _begin_jobs(self) -> None:
        """Begin every job that may begin; one without a duration ends at once."""
        waiting: list[int] = []
        while self._ready:
            index = heapq.heappop(self._ready)
            job = self._jobs[index]
            free = next((lane for lane in job.lanes if lane not in self._taken), None)
            if job.lanes and free is None:
                waiting.append(index)
                continue
            self._begun[index], self._lane_of[index] = self._now, free
            self._taken |= {free} - {None}  # type: ignore[arg-type]
            self._ahead[index] = job.stretches()[::-1]
            if self._ahead[index]:
                self._left[index] = self._ahead[index][-1].seconds
            else:
                self._end(index)
                for each in waiting:  # one of them may have its lane now
                    heapq.heappush(self._ready, each)
                waiting.clear()
        self._ready = waiting  # ascending, so still a heap

    def _go_on(self, index: int) -> None:
        """Begin the next stretch of a job, or end it."""
        self._ahead[index].pop()
        if self._ahead[index]:
            self._left[index] = self._ahead[index][-1].seconds
        else:
            del self._left[index]
            self._end(index)

    def _end(self, index: int) -> None:
        lane = self._lane_of[index]
        del self._ahead[index]
        self._taken.discard(lane or "")
        self._periods[index] = Period(self._begun[index], self._now, lane)
        for follower in self._followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                heapq.heappush(self._ready, follower)


def _rates(running: Sequence[Stretch], machine: Machine) -> list[float]:
    """Return how fast each running job proceeds, relative to one with cores to itself."""
    services = Stretch(math.inf, machine.services, max(math.ceil(machine.services), 1))
    factor = machine.dilation(sum(each.demand for each in running) + services.demand)
    wanted = [replace(each, demand=min(each.demand * factor, each.processes)) for each in running]
    share = _core_share([*wanted, services], machine.cores)
    given = [min(each.demand, share * each.processes) for each in wanted]
    return [
        min(cores / (each.demand * factor), 1.0) if each.demand else 1.0
        for each, cores in zip(running, given, strict=True)
    ]


def _core_share(running: Sequence[Stretch], cores: float) -> float:
    """Return λ, the cores for each process that wants more than it gets; infinite if all get what they want.

    Jobs are satisfied in the order of their demand per process, until an equal share of the rest is too small.
    """
    if sum(each.demand for each in running) <= cores:
        return math.inf
    left, processes = cores, sum(each.processes for each in running)
    for each in sorted(running, key=lambda each: each.demand / each.processes):
        if each.demand > left * each.processes / processes:
            return left / processes
        left -= each.demand
        processes -= each.processes
    return math.inf
