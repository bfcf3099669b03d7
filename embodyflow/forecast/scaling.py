"""The costs of a run's iterations with other numbers of workers, ranks and rows, on machines of the same kind.

A node's seconds are s(x, n) = a + b x + c (n − 1) / n, with x rows on its busiest rank. The last part is what n
trainer ranks exchange: each moves (n − 1) / n of all weights and gradients, as on a ring. Other nodes have c = 0, and
the commit has b = 0. One run tells a single point; then only b is above zero, and half of the rows take half of the
time. Further runs tell more: two runs with other numbers of ranks b and c, two with as many ranks a and b, and more
runs all three, by least squares through their medians with no part below zero. A sample of s seconds becomes
s · s(x′, n′) / s(x, n). What is between nodes stays as it is.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from omegaconf import OmegaConf

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_config
from embodyflow.config.grouped import GroupedConfig
from embodyflow.errors import ConfigError
from embodyflow.forecast.record import RunRecord, Sample
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
        rows: Rows of the busiest rank.
        ranks: Ranks that exchange weights, n.
        seconds: Seconds of an iteration, as a median.
    """

    rows: float
    ranks: int
    seconds: float

    def measure(self, part: str) -> float:
        """Return the factor of a part of :class:`Line`."""
        return {"per_row": self.rows, "exchange": (self.ranks - 1) / self.ranks, "fixed": 1.0}[part]


@dataclass(frozen=True)
class Line:
    """Seconds by rows per rank and by ranks, a + b x + c (n − 1) / n.

    Attributes:
        fixed: Seconds without rows, a.
        per_row: Seconds of a row, b.
        exchange: Seconds in which infinitely many ranks would exchange their weights, c.
    """

    fixed: float = 0.0
    per_row: float = 0.0
    exchange: float = 0.0

    def at(self, rows: float, ranks: int = 1) -> float:
        """Return the seconds at some rows per rank."""
        return self.fixed + self.per_row * rows + self.exchange * (ranks - 1) / ranks


NODE_PARTS = ("per_row", "exchange", "fixed")
"""Parts of the line of a node. Fewer points than parts leave out the last ones."""
COMMIT_PARTS = ("fixed", "exchange")


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


def scaled(record: RunRecord, config: RunConfig, others: Sequence[RunRecord] = ()) -> list[Sample]:
    """Return the costs of the record's iterations with another configuration.

    Args:
        record: Run whose iterations are scaled.
        config: Configuration to scale them to, see :func:`changed`.
        others: Further runs of the same job, for what does not scale with the rows.
    """
    runs = (record, *others)
    factors = {node: _factors(runs, config, node) for node in record.graph.nodes}
    commits = [_point(each, "trainer", [sample.commit.seconds for sample in each.samples]) for each in runs]
    commit = _ratio(fitted(commits, COMMIT_PARTS), commits[0], _shape_at(config, "trainer"))
    return [
        Sample(
            {node: cost.scaled(*factors[node]) for node, cost in sample.nodes.items()},
            sample.between,
            sample.commit.times(commit),
        )
        for sample in record.samples
    ]


def _factors(runs: Sequence[RunRecord], config: RunConfig, node: str) -> tuple[float, float]:
    """Return how many times the seconds, and the CPU seconds, of the first run a node takes with another configuration.

    They differ, because a rank that waits for another one takes time and computes nothing.
    """
    group = runs_on(runs[0].graph, node)
    after, costs = _shape_at(config, group), [[sample.nodes[node] for sample in run.samples] for run in runs]
    seconds = [_point(run, group, [cost.seconds for cost in each]) for run, each in zip(runs, costs, strict=True)]
    computing = [_point(run, group, [cost.computing for cost in each]) for run, each in zip(runs, costs, strict=True)]
    return _ratio(fitted(seconds), seconds[0], after), _ratio(fitted(computing), computing[0], after)


def _point(record: RunRecord, group: str, seconds: Sequence[float]) -> Point:
    return Point(*_shape_at(record.config, group), median(seconds))


def _shape_at(config: RunConfig, group: str) -> tuple[float, int]:
    """Return the rows of a group's busiest rank, and the number of ranks that exchange weights."""
    return rows_per_rank(config)[group], config.trainer.num_ranks if group == "trainer" else 1


def _ratio(line: Line, before: Point, after: tuple[float, int]) -> float:
    here = line.at(before.rows, before.ranks)
    return line.at(*after) / here if here > 0 else 1.0
