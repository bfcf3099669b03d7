"""Seconds of an iteration with their range, from simulations whose iterations draw their costs from recorded ones."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from embodyflow.forecast.events import Period, simulate
from embodyflow.forecast.machine import NO_LIMIT, Machine
from embodyflow.forecast.record import Sample
from embodyflow.forecast.schedule import FLOW, Shape, Work, schedule
from embodyflow.graph import TaskGraph
from embodyflow.workers.busy_time import covered

ITERATIONS = 12
"""Iterations of a simulation after those that fill the pipeline."""
SIMULATIONS = 40
RANGE = 0.9
"""Share of the simulations within the range."""


@dataclass(frozen=True)
class Forecast:
    """What iterations would take.

    Attributes:
        shape: How they are run.
        seconds: Median seconds of an iteration with its commit, over all simulations.
        low, high: Range of the median of one simulation: 5 % of the simulations are below, and 5 % above.
        idle: Share of the time in which a worker group has no node, by group.
        work: Work of the first simulation.
        periods: When each of it runs.
    """

    shape: Shape
    seconds: float
    low: float
    high: float
    idle: dict[str, float]
    work: Sequence[Work]
    periods: Sequence[Period]


def forecast(
    graph: TaskGraph,
    samples: Sequence[Sample],
    shape: Shape,
    *,
    machine: Machine = NO_LIMIT,
    seed: int = 0,
    simulations: int = SIMULATIONS,
) -> Forecast:
    """Simulate iterations whose costs are drawn from samples, with replacement, and return what they take.

    Args:
        graph: Graph of an iteration.
        samples: Costs of iterations on the ranks of ``shape``.
        shape: How they are run.
        machine: Cores that all processes share.
        seed: Seed of the draws.
        simulations: Number of simulations.
    """
    draws, filling = random.Random(seed), shape.staleness + 2
    medians, first = list[float](), None
    for _ in range(simulations):
        drawn = draws.choices(samples, k=filling + ITERATIONS)
        work = schedule(graph, drawn, shape)
        periods = simulate([each.job for each in work], machine)
        first = first or (work, periods)
        ends = _commit_ends(work, periods)
        medians.append(median(end - before for before, end in zip(ends[filling - 1 :], ends[filling:], strict=False)))
    assert first is not None
    medians.sort()
    tail = round((1 - RANGE) / 2 * (simulations - 1))
    window = _commit_ends(*first)[filling - 1], _commit_ends(*first)[-1]
    return Forecast(shape, median(medians), medians[tail], medians[-1 - tail], _idle(*first, shape, window), *first)


def _commit_ends(work: Sequence[Work], periods: Sequence[Period]) -> list[float]:
    pairs = zip(work, periods, strict=True)
    return [period.end for each, period in pairs if each.group == FLOW and each.node == "commit"]


def _idle(
    work: Sequence[Work], periods: Sequence[Period], shape: Shape, window: tuple[float, float]
) -> dict[str, float]:
    """Return the share of a window in which each group has no node, as a mean over its lanes.

    Work beside others keeps all lanes of its group busy, since all of its ranks do it.
    """
    lanes = defaultdict[str, dict[str | None, list[tuple[float, float]]]](lambda: defaultdict(list))
    for each, period in zip(work, periods, strict=True):
        if each.group != FLOW:
            group = "devices" if shape.takes_turns else each.group
            lanes[group][period.lane].append((period.begin, period.end))
    found = {}
    for group, by_lane in lanes.items():
        beside = by_lane.pop(None, [])
        busy = [covered([*lane, *beside], *window) for lane in by_lane.values() or [[]]]
        found[group] = 1 - fmean(busy) / max(window[1] - window[0], 1e-12)
    return found
