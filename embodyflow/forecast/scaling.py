"""The costs of a run's iterations with other numbers of workers, ranks and rows, on machines of the same kind.

With x rows on its busiest rank a node computes for u = a + b x + c (n − 1) / n + l (n − 1) seconds, and waits for W
seconds with parts of the same form. The last two are what n trainer ranks exchange on a ring: each moves (n − 1) / n of
all weights and gradients in n − 1 messages. That is Hockney's model of bandwidth and latency; for a ring see Thakur et
al. (2005), "Optimization of collective communication operations in MPICH". On one machine both take CPU time, too.
Other nodes have c = l = 0, and the commit takes a + c (n − 1) / n.

One run tells a single point; then only b is above zero, and half of the rows take half of the time. Further runs tell
more: two runs with other numbers of ranks b and c, two with as many ranks a and b, three other numbers of ranks b, c
and l, by least squares through the medians of runs with no part below zero. A sample of s seconds becomes
s · s(x′, n′) / m with m the median of its run.

The flow calls every process of a group, so the time between nodes is a + b p with p processes. The checkpoint takes
a + b n CPU seconds, n ranks together. It is known from runs that have a worker for each core, see :mod:`.record`.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from omegaconf import OmegaConf

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_config
from embodyflow.config.grouped import GroupedConfig
from embodyflow.errors import ConfigError
from embodyflow.forecast.record import Cost, RunRecord, Sample
from embodyflow.forecast.schedule import Shape
from embodyflow.graph.node_groups import runs_on

SCALED = (
    "rollout.num_workers",
    "rollout.num_groups",
    "rollout.group_size",
    "rollout.num_steps",
    "rollout.max_staleness",
    "rollout.mode",
    "trainer.num_ranks",
    "algorithm.old_log_probs",
)
"""Keys that may differ from the run's."""


@dataclass(frozen=True)
class Point:
    """What a run tells about a piece of work.

    Attributes:
        rows: Rows of the busiest rank, x; or processes that take part, p.
        ranks: Ranks that exchange weights, n.
        seconds: Seconds of an iteration, as a median.
        crowding: How many times as long the exchange takes because ranks share cores.
    """

    rows: float
    ranks: int
    seconds: float
    crowding: float = 1.0

    def measure(self, part: str) -> float:
        """Return the factor of a part of :class:`Line`."""
        exchange = self.crowding * (self.ranks - 1) / self.ranks
        return {"per_row": self.rows, "exchange": exchange, "steps": self.ranks - 1.0, "fixed": 1.0}[part]


@dataclass(frozen=True)
class Line:
    """Seconds by rows per rank and by ranks, a + b x + c (n − 1) / n + l (n − 1).

    Attributes:
        fixed: Seconds without rows, a.
        per_row: Seconds of a row, b.
        exchange: Seconds in which infinitely many ranks would exchange their weights, c.
        steps: Seconds of each of the n − 1 messages of a rank, l.
    """

    fixed: float = 0.0
    per_row: float = 0.0
    exchange: float = 0.0
    steps: float = 0.0

    def at(self, rows: float, ranks: int = 1) -> float:
        """Return the seconds at some rows per rank."""
        return sum(getattr(self, part) * Point(rows, ranks, 0.0).measure(part) for part in PARTS)


PARTS = ("fixed", "per_row", "exchange", "steps")
NODE_PARTS = ("per_row", "exchange", "steps", "fixed")
"""Parts of the line of a node. Fewer points than parts leave out the last ones."""
COMMIT_PARTS = ("fixed", "exchange")
BETWEEN_PARTS = ("fixed", "per_row")


def fitted(points: Sequence[Point], parts: Sequence[str] = NODE_PARTS) -> Line:
    """Return the line of least squares through points, with no negative part.

    A part that is the same at all points is left out, except the first one.
    """
    differing = [part for part in parts[1:] if part == "fixed" or len({each.measure(part) for each in points}) > 1]
    told = [parts[0], *differing][: len({(each.rows, each.ranks) for each in points})]
    seconds = np.array([each.seconds for each in points])
    best, least = Line(), math.inf
    for size in range(len(told), 0, -1):
        for chosen in itertools.combinations(told, size):
            measures = np.array([[each.measure(part) for part in chosen] for each in points])
            values = np.linalg.lstsq(measures, seconds, rcond=None)[0]
            error = float(np.sum((measures @ values - seconds) ** 2))
            if error < least - 1e-12 and (values >= 0).all():
                best, least = Line(**dict(zip(chosen, values.tolist(), strict=True))), error
    return best


def changed(base: RunConfig, values: Mapping[str, str]) -> RunConfig:
    """Return a run's configuration with other values of some keys.

    Raises:
        ConfigError: The costs of a key's change are not known, or the configuration is refused with it.
    """
    for key, value in values.items():
        if key not in SCALED:
            raise ConfigError(
                f"{key}={value}: a forecast does not know what it costs; allowed are {', '.join(SCALED)}. Run a few "
                "iterations with it and forecast from them"
            )
    merged = OmegaConf.merge(
        base.model_dump(mode="json"),
        OmegaConf.from_dotlist([f"{key}={value}" for key, value in values.items()]),
    )
    config = validate_config(OmegaConf.to_container(merged))  # type: ignore[arg-type]
    before, after = (each.algorithm.old_log_probs for each in (base, config))
    if before != after and "recorded" in (before, after):
        raise ConfigError(
            f"algorithm.old_log_probs={after}: the run has {before}, so its record lacks the cost; run a few "
            "iterations with it and forecast from them"
        )
    return config


def shape_of(config: RunConfig) -> Shape:
    """Return how a configuration runs its iterations."""
    streams = isinstance(config, GroupedConfig) and config.rollout.mode == "streaming"
    return Shape(
        workers=config.rollout.num_workers,
        ranks=config.trainer.num_ranks,
        staleness=config.rollout.max_staleness,
        num_groups=config.rollout.num_groups if streams and isinstance(config, GroupedConfig) else None,
    )


def rows_per_rank(config: RunConfig) -> dict[str, float]:
    """Return the rows of the busiest rank of each worker group; a worker plays whole groups."""
    collected, workers = config.rows_per_iteration, config.rollout.num_workers
    if isinstance(config, GroupedConfig):
        rows = math.ceil(config.rollout.num_groups / workers) * config.rollout.group_size
    else:
        rows = math.ceil(collected / workers)
    parts = config.trainer.num_ranks / config.trainer.tensor_parallel_size
    return {"rollout": rows, "trainer": math.ceil(config.full_batch / parts)}


def pooled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return one record for all runs with the same shape and the same rows, which has the iterations of each."""
    alike = defaultdict[tuple[Hashable, ...], list[RunRecord]](list)
    for record in records:
        alike[shape_of(record.config), *rows_per_rank(record.config).items()].append(record)
    return [
        replace(
            runs[0],
            samples=[sample for run in runs for sample in run.samples],
            measured=[seconds for run in runs for seconds in run.measured],
            queued=[seconds for run in runs for seconds in run.queued],
        )
        for runs in alike.values()
    ]


def scaled(record: RunRecord, config: RunConfig, others: Sequence[RunRecord] = ()) -> list[Sample]:
    """Return the costs of the record's iterations with another configuration.

    Args:
        record: Run whose iterations are scaled.
        config: Configuration to scale them to, see :func:`changed`.
        others: Further runs of the same job, for what does not scale with the rows.
    """
    runs = (record, *others)
    factors = {node: _factors(runs, config, node) for node in record.graph.nodes}
    between = _between(runs, config)
    checkpoint = _checkpoint(runs, config)
    commit, exchanging = _commit(runs, config)
    return [
        Sample(
            {node: cost.scaled(*factors[node]) for node, cost in sample.nodes.items()},
            sample.between.times(between),
            Cost(sample.commit.seconds * commit, sample.commit.seconds * commit * exchanging),
            checkpoint,
        )
        for sample in record.samples
    ]


def _between(runs: Sequence[RunRecord], config: RunConfig) -> float:
    """Return how many times the time between nodes takes: the flow calls every process of a node."""
    points = [
        Point(_processes(run.config), 1, median(sample.between.seconds for sample in run.samples)) for run in runs
    ]
    return _ratio(fitted(points, BETWEEN_PARTS).at(_processes(config)), points[0].seconds)


def _processes(config: RunConfig) -> int:
    return config.rollout.num_workers + config.trainer.num_ranks


def _commit(runs: Sequence[RunRecord], config: RunConfig) -> tuple[float, float]:
    """Return how many times the time of a commit takes, and the share of it in which ranks exchange weights."""
    points = [
        Point(
            0.0,
            run.config.trainer.num_ranks,
            median(sample.commit.seconds for sample in run.samples),
            max(run.config.trainer.num_ranks / run.machine.left, 1.0),
        )
        for run in runs
    ]
    line = fitted(points, COMMIT_PARTS)
    whole = line.at(0.0, config.trainer.num_ranks)
    return _ratio(whole, points[0].seconds), 1 - _ratio(line.fixed, whole)


def _checkpoint(runs: Sequence[RunRecord], config: RunConfig) -> Cost:
    """Return the cost of a checkpoint for each rank, from the runs that know it."""
    points = [
        Point(run.config.trainer.num_ranks, 1, run.config.trainer.num_ranks * seconds)
        for run in runs
        if (seconds := median(sample.checkpoint.seconds for sample in run.samples))
    ]
    if not points:
        return Cost()
    ranks = config.trainer.num_ranks
    seconds = fitted(points, ("per_row", "fixed")).at(ranks) / ranks
    return Cost(seconds, seconds)


def _factors(runs: Sequence[RunRecord], config: RunConfig, node: str) -> tuple[float, float]:
    """Return how many times the seconds, and the CPU seconds, of the first run a node takes with another configuration.

    They differ, because a rank that waits for another one takes time and computes nothing.
    """
    group = runs_on(runs[0].graph, node)
    shapes = [_shape_at(run.config, group) for run in runs]
    costs = [[sample.nodes[node] for sample in run.samples] for run in runs]
    computing = [median(cost.computing for cost in each) for each in costs]
    seconds = [median(cost.seconds for cost in each) for each in costs]
    waiting = [max(whole - part, 0.0) for whole, part in zip(seconds, computing, strict=True)]
    after = _shape_at(config, group)
    computes, waits = (
        fitted([Point(*shape, value) for shape, value in zip(shapes, values, strict=True)]).at(*after)
        for values in (computing, waiting)
    )
    return _ratio(computes + waits, seconds[0]), _ratio(computes, computing[0])


def _shape_at(config: RunConfig, group: str) -> tuple[float, int]:
    """Return the rows of a group's busiest rank, and the number of ranks that exchange weights."""
    return rows_per_rank(config)[group], config.trainer.num_ranks if group == "trainer" else 1


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0 else 1.0
