"""``embodyflow explain``: where the time of a run goes, and what would make it faster."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from embodyflow.cli.run_folders.found_runs import find_run
from embodyflow.cli.speed.advice import Advice, advice
from embodyflow.cli.speed.iteration_time import IterationTime, iteration_time
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import validate_recorded
from embodyflow.errors import ConfigError
from embodyflow.graph import load_pipeline
from embodyflow.record.metrics_log import records_in

WIDTH = 80
MOST_ADVICE = 4
UNEVEN = 1.1
"""Time of the slowest rollout worker, relative to the mean, that is worth a line."""
MOST_NODES = 3
"""Largest number of nodes that a line names."""


def show_explanation(run_root: Path, run: str) -> int:
    """Print what an iteration takes and which changes would make it faster; return the exit code.

    Args:
        run_root: Folder that holds the runs' folders.
        run: Name of the run, or its folder.

    Raises:
        ConfigError: There is no such run, it is an evaluation, or its metrics have no iteration with its time.
    """
    folder = find_run(run_root, run)
    if folder.is_evaluation():
        raise ConfigError(f"{run}: is an evaluation; allowed are training runs")
    config = validate_recorded(folder.config(), run)
    graph = load_pipeline(**config.pipeline.source())
    content = folder.metrics.path.read_bytes() if folder.metrics.path.exists() else b""
    time = iteration_time(list(records_in(content.split(b"\n"))), graph, config)
    if time is None:
        raise ConfigError(f"{run}: {folder.metrics.path} has no iteration with its time yet")
    print("\n".join([*facts(folder.path.name, time), "", *changes(time, config)]))
    return 0


def facts(name: str, time: IterationTime) -> Iterator[str]:
    """Yield lines on what an iteration takes."""
    iterations = "1 iteration" if time.num_iterations == 1 else f"the median of {time.num_iterations} iterations"
    yield f"{name}: an iteration takes {time.total:.3g} s, {iterations}"
    on_trainer = [node for node in time.nodes if node not in time.rollout_path]
    parts = {
        "rollout": (time.rollout, _longest(time, time.rollout_path)),
        "training": (time.training, _longest(time, on_trainer)),
        "commit": (time.commit, ""),
        "evaluation": (time.evaluation, ""),
    }
    for part, (seconds, nodes) in parts.items():
        line = f"  {part:<10}  {seconds / time.total:>4.0%}  {seconds:>7.3g} s  {nodes}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 29, drop_whitespace=True) or [line]
    if time.idle:
        idle = " and ".join(f"{group} {share:.0%}" for group, share in time.idle.items())
        yield f"Idle within the nodes' time: {idle}."
    if time.slowest_worker > UNEVEN:
        yield f"The slowest rollout worker is at work {time.slowest_worker:.2g} times as long as the mean."


def changes(time: IterationTime, config: RunConfig) -> Iterator[str]:
    """Yield lines on what would make it faster."""
    found = advice(time, config)[:MOST_ADVICE]
    if not found:
        yield "No change is expected to gain more than 5 %."
        return
    yield "Each alone would make it faster by:"
    for each in found:
        yield from textwrap.wrap(_line(each), WIDTH, subsequent_indent=" " * 9)


def _line(each: Advice) -> str:
    return f"  {'≤' if each.is_bound else '×'} {each.gain:<4.3g} {each.change} ({each.condition})"


def _longest(time: IterationTime, nodes: Sequence[str]) -> str:
    chosen = sorted(nodes, key=lambda node: -time.nodes[node])[:MOST_NODES]
    shown = [f"{node} {time.nodes[node]:.3g}" for node in chosen if time.nodes[node] >= 0.01 * time.total]
    return ", ".join(shown)
