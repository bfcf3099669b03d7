"""``embodyflow compare``: what runs reached, in what time, and how their configurations differ."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.table import Table

from embodyflow.cli.comparison.compared_runs import (
    ComparedRun,
    Group,
    differences,
    grouped,
    measure_of,
    read_runs,
)
from embodyflow.cli.comparison.curves import PICTURES, draw
from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.errors import ConfigError


def show_comparison(run_root: Path, names: Sequence[str], picture: Path | None) -> int:
    """Print tables of runs, those that differ only by seed as one row; return the exit code.

    Args:
        run_root: Folder that holds the runs' folders.
        names: Names of the runs, or their folders.
        picture: File to draw curves to; ``None`` draws none.

    Raises:
        ConfigError: A run cannot be compared, or the picture cannot be written.
    """
    if len(names) < 2:
        raise ConfigError(f"RUN: must be at least 2 runs, is {len(names)}")
    if picture is not None and picture.suffix not in PICTURES:
        raise ConfigError(f"--picture={picture}: allowed are files ending in {', '.join(PICTURES)}")
    runs = read_runs(run_root, names)
    groups, measure = grouped(runs), measure_of(runs)
    console = table_console()
    console.print(results(groups, measure))
    if differing := differences(groups):
        console.print(settings(groups, differing))
    if picture is not None:
        try:
            draw(groups, measure, picture)
        except OSError as error:
            raise ConfigError(f"--picture={picture}: cannot be written: {error.strerror}") from error
        print(f"picture={picture}")
    return 0


def results(groups: Sequence[Group], measure: str) -> Table:
    """Return the table of what the groups reached."""
    table = Table("", "runs", "before", "after", "interval", "iterations", "seconds", box=None, title=measure)
    table.title_justify = "left"
    table.columns[1].overflow = "fold"
    for group in groups:
        before, after = ([_value(run, measure, at) for run in group.runs] for at in (0, -1))
        table.add_row(
            group.letter,
            as_it_is(" ".join(run.name for run in group.runs)),
            f"{mean(before):.4g}",
            f"{mean(after):.4g}",
            interval(group.runs, measure),
            _spread([run.iterations for run in group.runs]),
            _mean_seconds(group),
        )
    return table


def interval(runs: Sequence[ComparedRun], measure: str) -> str:
    """Return the 95 % interval of a run's last value; of several runs, the smallest and the largest value.

    Runs of the same seed repeat each other, and their number says nothing about other seeds.
    """
    if len(runs) > 1:
        values = [_value(run, measure, -1) for run in runs]
        seeds = len({run.seed for run in runs})
        counted = f"{seeds} seeds" if seeds == len(runs) else f"{len(runs)} runs of {seeds} seed{'s' * (seeds > 1)}"
        return f"{min(values):.4g} to {max(values):.4g}, {counted}"
    last = runs[0].values(measure)[-1]
    stem = measure.removesuffix("_rate")
    low, high = last.get(f"{stem}_low"), last.get(f"{stem}_high")
    return "" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def settings(groups: Sequence[Group], differing: dict[str, list[str]]) -> Table:
    """Return the table of the keys that differ."""
    table = Table("differs", *(group.letter for group in groups), box=None)
    for column in table.columns:
        column.overflow = "fold"
    for key, values in differing.items():
        table.add_row(as_it_is(key), *map(as_it_is, values))
    return table


def _value(run: ComparedRun, measure: str, at: int) -> float:
    return float(run.values(measure)[at][measure])


def _mean_seconds(group: Group) -> str:
    times = [run.seconds for run in group.runs]
    known = [each for each in times if each is not None]
    return f"{mean(known):.4g}" if len(known) == len(times) else "–"


def _spread(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"
