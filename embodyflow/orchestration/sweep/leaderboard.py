"""The leaderboard of a sweep: its runs by the value of a metric, those that differ only by seed as one row."""

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from embodyflow.data.confidence_intervals import mean_interval
from embodyflow.orchestration.sweep.grid import SEED, short_names, swept
from embodyflow.orchestration.sweep.sweep_folder import RunState, SweepFolder
from embodyflow.orchestration.sweep.sweep_request import Combination, Direction, Plan
from embodyflow.process.files.durable_files import write_durably
from embodyflow.record.metric_names import common_measure

WIDTH = 80
"""Columns of the printed table."""

COLUMNS = ("rank", "before", "after", "interval", "state", "seconds", "runs")
"""Columns of the table; the keys that differ stand after the first."""

STUDENT_SEEDS = 5
"""Number of seeds from which Student's interval of the mean is shown."""

INTERVALS = {
    "evaluation": "95 % of the run's last evaluation",
    "range": "smallest and largest value of the seeds",
    "mean": "95 % of the mean over the seeds",
}
"""Meaning of an interval by its kind."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Interval:
    """An interval around the value of a row.

    Attributes:
        low: Lower end.
        high: Upper end.
        kind: Key of :data:`INTERVALS`.
    """

    low: float
    high: float
    kind: str


@dataclass(frozen=True)
class Row:
    """Runs that differ only by seed.

    Attributes:
        rank: Place from 1; ``None`` without a finite value.
        settings: Value of each key that differs, without the seed.
        runs: Names of the runs.
        seeds: Number of finished runs with a value.
        before: First value of the metric, as the mean over the finished runs; ``None`` if no run has one.
        after: Last value of the metric, likewise.
        interval: Interval of the last value, if there is one.
        states: Number of runs in each state.
        seconds: Time of the runs' processes, summed.
    """

    rank: int | None
    settings: Mapping[str, str]
    runs: Sequence[str]
    seeds: int
    before: float | None
    after: float | None
    interval: Interval | None
    states: Mapping[str, int]
    seconds: float

    @property
    def state(self) -> str:
        """States of the runs in words."""
        if len(self.runs) == 1:
            return next(iter(self.states))
        return ", ".join(f"{count} {state}" for state, count in self.states.items())


@dataclass(frozen=True)
class Leaderboard:
    """The ranked rows of a sweep.

    Attributes:
        sweep_id: Name of the sweep.
        metric: Metric of the ranks; ``None`` while no run has finished.
        direction: Whether a large or a small value is good.
        rows: Ranked rows, best first, then those without a rank.
        failures: Reason of each failed run.
    """

    sweep_id: str
    metric: str | None
    direction: Direction
    rows: Sequence[Row]
    failures: Mapping[str, str]

    def title(self) -> str:
        """Return the metric and the direction in words."""
        return f"{self.metric or 'no metric yet'}, {self.direction}"

    def table(self) -> list[dict[str, Any]]:
        """Return the rows for a table in the Prefect UI."""
        return [dict(zip(self._header(), self._cells(row), strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Return the leaderboard as Markdown."""
        lines = [self._header(), ["---"] * len(self._header())]
        lines += [[_text(cell).replace("|", "\\|") for cell in self._cells(row)] for row in self.rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        notes = "".join(f"\n- {note}" for note in self._notes())
        return f"# {self.sweep_id}\n\n{self.title()}\n\n{table}{notes}\n"

    def text(self, width: int = WIDTH) -> str:
        """Return the leaderboard for a terminal of that many columns."""
        table = Table(*self._header(), box=None, title=self.title(), title_justify="left", pad_edge=False)
        for column in table.columns:
            column.overflow = "fold"
        for row in self.rows:
            table.add_row(*(_text(cell) for cell in self._cells(row)))
        buffer = io.StringIO()
        console = Console(file=buffer, width=width, color_system=None, markup=False, emoji=False, highlight=False)
        for each in (table, *self._notes()):
            console.print(each)
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    def as_json(self) -> str:
        """Return the leaderboard as JSON; a value that is missing, NaN or inf is null, never a zero."""
        rows = [asdict(row) | {key: _finite(getattr(row, key)) for key in ("before", "after")} for row in self.rows]
        values = {"sweep_id": self.sweep_id, "metric": self.metric, "direction": self.direction}
        return json.dumps(values | {"rows": rows, "failures": dict(self.failures)}, indent=2) + "\n"

    def write(self, folder: SweepFolder) -> None:
        """Write the leaderboard to the sweep's folder, as JSON and as Markdown."""
        write_durably(folder.path / "leaderboard.json", self.as_json())
        write_durably(folder.path / "leaderboard.md", self.markdown())

    def _keys(self) -> dict[str, str]:
        return short_names(list(self.rows[0].settings), taken=COLUMNS)

    def _header(self) -> list[str]:
        return [COLUMNS[0], *self._keys().values(), *COLUMNS[1:]]

    def _cells(self, row: Row) -> list[Any]:
        interval = "" if row.interval is None else f"{row.interval.low:.3g} to {row.interval.high:.3g}"
        settings = [row.settings[key] for key in self._keys()]
        runs = " ".join(run_id.removeprefix(f"{self.sweep_id}-") for run_id in row.runs)
        return [row.rank, *settings, row.before, row.after, interval, row.state, round(row.seconds), runs]

    def _notes(self) -> list[str]:
        kinds = dict.fromkeys(row.interval.kind for row in self.rows if row.interval is not None)
        notes = [f"interval: {'; '.join(INTERVALS[kind] for kind in kinds)}"] if kinds else []
        return notes + [f"{run_id} failed: {reason}" for run_id, reason in self.failures.items()]


def leaderboard(
    plan: Plan, folder: SweepFolder, sweep_id: str, metric: str | None, direction: Direction
) -> Leaderboard:
    """Return the leaderboard of a sweep from the folders of its runs.

    Args:
        plan: Plan of the sweep.
        folder: Folder of the sweep, opened.
        sweep_id: Name of the sweep.
        metric: Metric to rank by; ``None`` is that of :func:`common_measure`.
        direction: Whether a large or a small value is good.
    """
    finished = [run_id for run_id, record in folder.records.items() if record.state is RunState.FINISHED]
    records = {run_id: folder.run(run_id).metrics.read() for run_id in finished}
    measure = metric or common_measure(list(records.values()))
    keys = [key for key in swept(plan.grid) if key != SEED]
    groups: dict[tuple[str, ...], list[Combination]] = {}
    for each in plan.combinations:
        groups.setdefault(tuple(each.values[key] for key in keys), []).append(each)
    rows = [
        _row(dict(zip(keys, values, strict=True)), [each.run_id for each in group], folder, records, measure)
        for values, group in groups.items()
    ]
    failures = {
        run_id: f"{record.reason}; see {folder.log(run_id).relative_to(folder.path)}"
        for run_id, record in folder.records.items()
        if record.state is RunState.FAILED
    }
    return Leaderboard(sweep_id, measure, direction, ranked(rows, direction), failures)


def ranked(rows: Sequence[Row], direction: Direction) -> list[Row]:
    """Return the rows with their ranks, best first, then those without a finite value in their order."""
    sign = -1.0 if direction == "maximize" else 1.0
    valued = [row for row in rows if row.after is not None and math.isfinite(row.after)]
    best_first = sorted(valued, key=lambda row: sign * (row.after or 0.0))
    return [
        *(Row(**{**vars(row), "rank": rank}) for rank, row in enumerate(best_first, 1)),
        *(row for row in rows if row not in valued),
    ]


def _row(
    settings: Mapping[str, str],
    runs: Sequence[str],
    folder: SweepFolder,
    records: Mapping[str, Sequence[Record]],
    measure: str | None,
) -> Row:
    valued = [
        [line for line in records.get(run_id, ()) if measure and line.get(measure) is not None] for run_id in runs
    ]
    lines = [found for found in valued if found]
    before, after = ([float(found[at][str(measure)]) for found in lines] for at in (0, -1))
    states = Counter(folder.records[run_id].state.value for run_id in runs)
    return Row(
        rank=None,
        settings=settings,
        runs=runs,
        seeds=len(lines),
        before=mean(before) if lines else None,
        after=mean(after) if lines else None,
        interval=_interval(after, lines[0][-1], str(measure)) if lines else None,
        states=dict(states),
        seconds=sum(folder.records[run_id].seconds for run_id in runs),
    )


def _interval(values: Sequence[float], last: Record, measure: str) -> Interval | None:
    """Return the interval of the mean over seeds; of few seeds their range; of one run its evaluation's."""
    if not all(map(math.isfinite, values)):
        return None
    if len(values) >= STUDENT_SEEDS:
        return Interval(*mean_interval(mean(values), stdev(values), len(values)), "mean")
    if len(values) > 1:
        return Interval(min(values), max(values), "range")
    stem = measure.removesuffix("_rate")
    low, high = last.get(f"{stem}_low"), last.get(f"{stem}_high")
    return None if low is None or high is None else Interval(float(low), float(high), "evaluation")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
