"""The metrics that detectors of health read, and what they find in them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Record = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""

TIMED = "perf/"
"""Beginning of metrics that depend on timing and differ when an iteration is repeated."""


@dataclass(frozen=True)
class Finding:
    """What a detector found in the newest iteration.

    Attributes:
        metric: Metric that shows it.
        value: Value of the metric, or a number derived from it that the text explains.
        threshold: Value that it passed.
        text: One clause that says what is wrong, with both numbers.
        healthy: Newest iteration whose weights were evaluated and better; ``None`` if the finding knows of none. A
            roll-back returns to it, or to an earlier one.
        rate_factor: Factor of ``trainer.learning_rate`` that should make the value a usual one; ``None`` if the finding
            knows of none. A roll-back that changes the rate takes the smaller factor.
    """

    metric: str
    value: float
    threshold: float
    text: str
    healthy: int | None = None
    rate_factor: float | None = None


@dataclass(frozen=True)
class History:
    """Metrics of a run up to an iteration, oldest first.

    Attributes:
        iterations: Lines of the iterations; the last one is the iteration that is examined.
        evaluations: Lines of the evaluations before it.
        thresholds: Thresholds of metrics that were passed before a roll-back. They stand in for a baseline that went
            with the discarded iterations.
    """

    iterations: Sequence[Record]
    evaluations: Sequence[Record] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def newest(self, name: str) -> float | None:
        """Return a metric of the examined iteration, which may be NaN or inf; ``None`` if it lacks the metric."""
        return self.iterations[-1].get(name) if self.iterations else None

    def values(self, name: str) -> list[float]:
        """Return the finite values of a metric, one for each iteration that has one."""
        return [each[name] for each in self.iterations if name in each and math.isfinite(each[name])]

    def recent(self, name: str, count: int) -> list[float]:
        """Return a metric of the newest ``count`` iterations; empty if one of them has no finite value."""
        values = [each.get(name, math.nan) for each in self.iterations[-count:]]
        return values if len(values) == count and all(map(math.isfinite, values)) else []

    def first_median(self, name: str, count: int) -> float | None:
        """Return the median of a metric's first ``count`` values; ``None`` while there are fewer."""
        values = self.values(name)
        return statistics.median(values[:count]) if len(values) >= count else None

    def median_before(self, name: str, newest: int, count: int, least: int | None = None) -> float | None:
        """Return the median of at most ``count`` values before the newest ones; ``None`` while there are too few.

        Args:
            name: Metric.
            newest: Number of newest values to leave out.
            count: Number of values before them.
            least: Number of values that suffices; ``None`` needs all.
        """
        values = self.values(name)[: -newest or None][-count:]
        return statistics.median(values) if len(values) >= (count if least is None else least) else None


def history_at(
    records: Sequence[Record],
    iteration: int,
    *,
    timed: bool = True,
    thresholds: Mapping[str, float] = MappingProxyType({}),
) -> History:
    """Return the history at the commit of an iteration, without the evaluation after it.

    Args:
        records: Lines of ``metrics.jsonl``.
        iteration: Index of the iteration.
        timed: Whether to keep metrics that depend on timing.
        thresholds: Thresholds that were passed before a roll-back, by metric.
    """
    kept = [each if timed else _lasting(each) for each in records]
    return History(
        [each for each in kept if "weights_digest" in each and each["iteration"] <= iteration],
        [each for each in kept if is_evaluation(each) and each["iteration"] < iteration],
        thresholds,
    )


def is_evaluation(record: Record) -> bool:
    """Return True if a line of ``metrics.jsonl`` is that of an evaluation."""
    return any(name.startswith("eval/") for name in record)


def _lasting(record: Record) -> Record:
    return {name: value for name, value in record.items() if not name.startswith(TIMED)}
