"""Curves of compared runs, with a band over the seeds of a group."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import matplotlib

from embodyflow.cli.comparison.compared_runs import Group

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

PICTURES = (".png", ".svg")
"""Endings of files that can be drawn."""

Curve = dict[int, list[float]]
"""Values of a group's runs, by iteration."""


def draw(groups: Sequence[Group], measure: str, path: Path) -> None:
    """Draw a metric over iterations: the mean of each group, and a band from its smallest to its largest value.

    Args:
        groups: Groups of runs.
        measure: Name of the metric.
        path: File to write, a PNG or SVG.

    Raises:
        OSError: The file cannot be written.
    """
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    for group in groups:
        curve = curve_of(group, measure)
        at = sorted(curve)
        [line] = axes.plot(at, [mean(curve[each]) for each in at], ".-", lw=1, label=_label(group))
        if len(group.runs) > 1:
            low, high = [min(curve[each]) for each in at], [max(curve[each]) for each in at]
            axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="iteration", ylabel=measure)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path)


def curve_of(group: Group, measure: str) -> Curve:
    """Return the values of a group's runs by iteration, at the iterations that all of them have."""
    curve: Curve = defaultdict(list)
    for run in group.runs:
        for iteration, value in {int(each["iteration"]): float(each[measure]) for each in run.values(measure)}.items():
            curve[iteration].append(value)
    return {iteration: values for iteration, values in curve.items() if len(values) == len(group.runs)}


def _label(group: Group) -> str:
    first = group.runs[0].name
    return (
        f"{group.letter}: {first}"
        if len(group.runs) == 1
        else f"{group.letter}: {first} and {len(group.runs) - 1} more"
    )
