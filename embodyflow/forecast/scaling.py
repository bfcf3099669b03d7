"""The costs of a run's iterations with other numbers of workers, ranks and rows, on machines of the same kind.

A node's seconds are a line in the rows of its busiest rank, s(x) = a + b x. One run tells a single point of the line;
then a = 0, and half of the rows take half of the time. Further runs with other numbers of rows per rank tell both: the
line is that of least squares through the runs' medians, with a ≥ 0 and b ≥ 0. A node with a sample s at x rows takes
s · s(x′) / s(x) at x′ rows. What is between nodes and the commit stay as they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

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
class Line:
    """Seconds by rows per rank, a + b x.

    Attributes:
        fixed: Seconds without rows, a.
        per_row: Seconds of a row, b.
    """

    fixed: float
    per_row: float

    def at(self, rows: float) -> float:
        """Return the seconds at some rows per rank."""
        return self.fixed + self.per_row * rows


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line of least squares through points (rows per rank, seconds), with no negative part.

    Points with the same number of rows give a line through zero.
    """
    x, y = fmean(point[0] for point in points), fmean(point[1] for point in points)
    spread = sum((point[0] - x) ** 2 for point in points)
    slope = sum((point[0] - x) * (point[1] - y) for point in points) / spread if spread else y / x
    if slope < 0:
        return Line(y, 0.0)
    if y - slope * x < 0:
        return Line(0.0, sum(a * b for a, b in points) / sum(a * a for a, _ in points))
    return Line(y - slope * x, slope)


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
    before, after = rows_per_rank(record.config), rows_per_rank(config)
    factors = {}
    for node in record.graph.nodes:
        group = runs_on(record.graph, node)
        line = fitted([_point(each, node, group) for each in (record, *others)])
        here = line.at(before[group])
        factors[node] = line.at(after[group]) / here if here > 0 else 1.0
    return [
        Sample({node: cost.times(factors[node]) for node, cost in sample.nodes.items()}, sample.between, sample.commit)
        for sample in record.samples
    ]


def _point(record: RunRecord, node: str, group: str) -> tuple[float, float]:
    seconds = median(sample.nodes[node].seconds for sample in record.samples)
    return rows_per_rank(record.config)[group], seconds
