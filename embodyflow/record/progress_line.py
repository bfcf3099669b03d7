"""One line of ``metrics.jsonl`` in a few words: for the terminal, the log of the flow run and the run's own log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABEL_WIDTH, NUMBER_WIDTH, KIND_WIDTH = 7, 7, 10

EVALUATED = {
    "eval/greedy_success_rate": "greedy",
    "eval/sampled_success_rate": "sampled",
    "eval/return": "return",
}
"""Metrics of an evaluation that are shown, with their labels."""

ALARMS = ("health/", "perf/health/")
"""Beginnings of metrics that show alarms."""

WARM_STARTED = {"sft/success_rate": "success", "sft/steps": "steps"}
"""Metrics of a warm start that ends at a measured quality, with their labels."""


@dataclass(frozen=True)
class ProgressLine:
    """The shown part of an iteration, an evaluation or a warm start.

    Attributes:
        kind: ``iteration``, ``evaluated``, ``warm start`` or ``alarm``.
        iteration: Index of the iteration.
        iterations: Number of iterations of the run.
        numbers: Label and formatted value of at most three metrics, or of each alarm.
    """

    kind: str
    iteration: int
    iterations: int
    numbers: tuple[tuple[str, str], ...]

    @property
    def count(self) -> str:
        """The iteration and the number of iterations, such as `` 7/80``, as wide as that of the last iteration."""
        return f"{self.iteration:>{len(str(self.iterations))}}/{self.iterations}"

    def __str__(self) -> str:
        """Return the line in columns: those of further lines stand below them."""
        numbers = (f"{label:<{LABEL_WIDTH}} {value:>{NUMBER_WIDTH}}" for label, value in self.numbers)
        return "  ".join([f"{self.kind:<{KIND_WIDTH}}", self.count, *numbers])


def progress_line(record: Mapping[str, Any], headline: Mapping[str, str], iterations: int) -> ProgressLine | None:
    """Return the line that shows a record; ``None`` if it has no metric to show.

    Args:
        record: Line of ``metrics.jsonl``.
        headline: Metrics of an iteration to show, with their labels: ``RunConfig.headline``.
        iterations: Number of iterations of the run.
    """
    for kind, labels in (("evaluated", EVALUATED), ("warm start", WARM_STARTED), ("iteration", headline)):
        numbers = tuple((label, short_number(record[name])) for name, label in labels.items() if name in record)
        if numbers:
            return ProgressLine(kind, record["iteration"], iterations, numbers)
    return None


def alarm_line(record: Mapping[str, Any], iterations: int) -> ProgressLine | None:
    """Return the line that shows the alarms of an iteration; ``None`` without any.

    Args:
        record: Line of ``metrics.jsonl``.
        iterations: Number of iterations of the run.
    """
    names = [name for name in record if name.startswith(ALARMS)]
    numbers = tuple((name.rpartition("/")[2], short_number(record[name])) for name in names)
    return ProgressLine("alarm", record["iteration"], iterations, numbers) if numbers else None


def short_number(value: float) -> str:
    """Format a number with about four digits in at most seven characters, such as ``0.812``, ``341.2``, ``60``."""
    size = abs(value)
    if size >= 1e5 or 0 < size < 1e-3:
        return f"{value:.0e}"
    if size >= 10 and float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"
