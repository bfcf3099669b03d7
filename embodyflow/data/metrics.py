"""Metrics that know how they are reduced.

A metric is declared with its reduction where it is measured; merging across ranks follows the declaration and
never guesses from the name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np


class Reduction(StrEnum):
    """How values of one metric from several ranks become one."""

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    LAST = "last"
    PERCENTILE = "percentile"


@dataclass(frozen=True)
class Metric:
    """One measured number.

    Attributes:
        reduction: how it merges with the same metric of another rank.
        value: the number; of a mean, the mean over this rank's samples.
        weight: of a mean, the number of samples behind it; of a percentile, which one; otherwise unused.
        samples: of a percentile, what it is of: ranks' percentiles do not merge, their samples do.
    """

    reduction: Reduction
    value: float
    weight: float = 1.0
    samples: tuple[float, ...] = ()

    def merge(self, other: "Metric") -> "Metric":
        """Return the metric over both ranks' samples.

        Raises:
            ValueError: the two were declared with different reductions, or as different percentiles.
        """
        if self.reduction is not other.reduction:
            raise ValueError(f"a metric is declared both {self.reduction} and {other.reduction}")
        match self.reduction:
            case Reduction.MEAN:
                if other.weight == 0:  # a mean over no samples says nothing, whatever its value
                    return self
                if self.weight == 0:
                    return other
                weight = self.weight + other.weight
                value = (self.value * self.weight + other.value * other.weight) / weight
                return Metric(Reduction.MEAN, value, weight)
            case Reduction.SUM:
                return Metric(Reduction.SUM, self.value + other.value)
            case Reduction.MIN:
                return Metric(Reduction.MIN, min(self.value, other.value))
            case Reduction.MAX:
                return Metric(Reduction.MAX, max(self.value, other.value))
            case Reduction.LAST:
                return other
            case Reduction.PERCENTILE:
                if self.weight != other.weight:
                    raise ValueError(f"a metric is declared as percentile {self.weight:g} and {other.weight:g}")
                return percentile(self.samples + other.samples, self.weight)


def mean(value: float, weight: float = 1.0) -> Metric:
    """A mean over ``weight`` samples."""
    return Metric(Reduction.MEAN, float(value), float(weight))


def total(value: float) -> Metric:
    """A sum over ranks."""
    return Metric(Reduction.SUM, float(value))


def minimum(value: float) -> Metric:
    """The smallest over ranks."""
    return Metric(Reduction.MIN, float(value))


def maximum(value: float) -> Metric:
    """The largest over ranks."""
    return Metric(Reduction.MAX, float(value))


def last(value: float) -> Metric:
    """The value of the highest rank: for what every rank knows alike."""
    return Metric(Reduction.LAST, float(value))


def percentile(samples: Iterable[float], percent: float) -> Metric:
    """The value below which ``percent`` (0 to 100) of all ranks' samples lie, interpolated; NaN without samples."""
    kept = tuple(float(sample) for sample in samples)
    value = float(np.percentile(kept, percent)) if kept else float("nan")
    return Metric(Reduction.PERCENTILE, value, float(percent), kept)


def as_metrics(values: Mapping[str, Any]) -> dict[str, Metric]:
    """Declare bare numbers as means over ranks, leaving declared metrics as they are.

    Raises:
        TypeError: a value is neither.
    """
    return {name: value if isinstance(value, Metric) else mean(_number(name, value)) for name, value in values.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # the last is a tensor's of several numbers
        raise TypeError(f"the metric {name!r} must be a number or a Metric, is {value!r}") from error


def merge_metrics(ranks: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge the metrics of several ranks, in rank order, by their declared reductions."""
    merged: dict[str, Metric] = {}
    for metrics in ranks:
        for name, metric in metrics.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def to_floats(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return name to value, sorted by name; a mean over nothing is left out, as it says nothing."""
    return {name: metrics[name].value for name in sorted(metrics) if not _is_empty(metrics[name])}


def _is_empty(metric: Metric) -> bool:
    return metric.reduction is Reduction.MEAN and metric.weight == 0
