"""Metrics that carry their reduction.

The code that measures a metric declares its reduction. Merging across ranks follows the declaration and never guesses
from the name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np


class Reduction(StrEnum):
    """How the values of a metric from several ranks become one value."""

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
        reduction: Reduction that merges the metric with the same metric of another rank.
        value: The measured number; a mean is over the samples of this rank.
        weight: Number of samples behind a mean, or the percent of a percentile; unused otherwise.
        samples: Samples of a percentile. Percentiles of ranks do not merge, their samples do.
    """

    reduction: Reduction
    value: float
    weight: float = 1.0
    samples: tuple[float, ...] = ()

    def merge(self, other: "Metric") -> "Metric":
        """Return the metric over both ranks' samples.

        Raises:
            ValueError: The two have different reductions or are different percentiles.
        """
        if self.reduction is not other.reduction:
            raise ValueError(f"a metric is declared both {self.reduction} and {other.reduction}")
        match self.reduction:
            case Reduction.MEAN:
                if other.weight == 0:  # a mean over no samples carries no information
                    return self
                if self.weight == 0:
                    return other
                weight = self.weight + other.weight
                value = (self.value * self.weight + other.value * other.weight) / weight
                return Metric(Reduction.MEAN, value, weight)
            case Reduction.SUM:
                return Metric(Reduction.SUM, self.value + other.value)
            case Reduction.MIN:
                return Metric(Reduction.MIN, float(np.minimum(self.value, other.value)))  # NaN of either stays NaN
            case Reduction.MAX:
                return Metric(Reduction.MAX, float(np.maximum(self.value, other.value)))
            case Reduction.LAST:
                return other
            case Reduction.PERCENTILE:
                if self.weight != other.weight:
                    raise ValueError(f"a metric is declared as percentile {self.weight:g} and {other.weight:g}")
                return percentile(self.samples + other.samples, self.weight)


def mean(value: float, weight: float = 1.0) -> Metric:
    """Declare a mean over ``weight`` samples."""
    return Metric(Reduction.MEAN, float(value), float(weight))


def total(value: float) -> Metric:
    """Declare a sum over ranks."""
    return Metric(Reduction.SUM, float(value))


def minimum(value: float) -> Metric:
    """Declare a minimum over ranks."""
    return Metric(Reduction.MIN, float(value))


def maximum(value: float) -> Metric:
    """Declare a maximum over ranks."""
    return Metric(Reduction.MAX, float(value))


def last(value: float) -> Metric:
    """Declare a value that is the same on every rank; the highest rank provides it."""
    return Metric(Reduction.LAST, float(value))


def percentile(samples: Iterable[float], percent: float) -> Metric:
    """Declare a percentile over the samples of all ranks, interpolated; NaN if there are no samples.

    Args:
        samples: Samples of this rank.
        percent: Percentile to report, 0 to 100.
    """
    kept = tuple(float(sample) for sample in samples)
    value = float(np.percentile(kept, percent)) if kept else float("nan")
    return Metric(Reduction.PERCENTILE, value, float(percent), kept)


def as_metrics(values: Mapping[str, Any]) -> dict[str, Metric]:
    """Declare bare numbers as means over ranks; keep declared metrics unchanged.

    Raises:
        TypeError: A value is neither a number nor a metric.
    """
    return {name: value if isinstance(value, Metric) else mean(_number(name, value)) for name, value in values.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor with several elements
        raise TypeError(f"the metric {name!r} must be a number or a Metric, is {value!r}") from error


def merge_metrics(ranks: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge the metrics of several ranks, in rank order, by their declared reductions."""
    merged: dict[str, Metric] = {}
    for metrics in ranks:
        for name, metric in metrics.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def to_floats(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the value of each metric, sorted by name; means over no samples are omitted."""
    return {name: metrics[name].value for name in sorted(metrics) if not _is_empty(metrics[name])}


def _is_empty(metric: Metric) -> bool:
    return metric.reduction is Reduction.MEAN and metric.weight == 0
