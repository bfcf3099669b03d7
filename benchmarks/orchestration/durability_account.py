"""The time that a job spends on durable rows, ledger and checkpoints, summed over all processes.

The comparison in :mod:`benchmarks.orchestration.durability` is only as exact as two runs are equally fast. This script
adds up the time that goes into durability alone. An iteration waits for the work in workers. The flow's process works
in threads beside the next iteration, which loses at most a core to them. So ``most_share``, the wall seconds in workers
plus the CPU seconds in the flow's process, is an upper bound of the cost per iteration.
"""

import asyncio
import functools
import importlib
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import local
from typing import Any

NODE = "benchmarks.orchestration.durability_account:kept_node"
IN_WORKERS = ("write_rows", "Journal.append", "Journal.read", "Journal.replace", "OpenEpisodesFolder.write")
_DEPTH = local()  # nesting depth of timed functions, by thread


def run_and_account(flow: str, experiment: str, iterations: int, folder: str, overrides: Sequence[str]) -> None:
    """Run a job; print the cost of durability per iteration as JSON.

    Args:
        flow: Name of the flow.
        experiment: Experiment of the flow.
        iterations: Number of iterations.
        folder: Folder for the run and for the recorded times.
        overrides: Overrides of the flow.
    """
    import embodyflow.orchestration.run.stages as stages
    import embodyflow.record.checkpoints as checkpoints
    import embodyflow.record.metrics_log as metrics_log
    from embodyflow.orchestration.run.iterations.graph_run import GraphRun
    from embodyflow.record.episodes.stage_rows import StageRows
    from embodyflow.record.ledger import Ledger

    training: Any = importlib.import_module("embodyflow.orchestration.run.training")
    notes, seconds = Path(folder) / "account.jsonl", list[float]()
    for place, name in (
        (checkpoints, "_flush_and_digest"),
        (checkpoints, "flush"),
        (metrics_log, "flush"),
        (stages, "_flush"),
        (Ledger, "append"),
        (StageRows, "drop"),
    ):
        setattr(place, name, noted(getattr(place, name), notes))

    work, run_iteration = GraphRun._work, training.run_iteration

    def work_with_notes(self: GraphRun, node: Any) -> Any:
        whole = work(self, node)
        if whole.stage is None:
            return whole
        return replace(whole, function=NODE, config={"noted": whole.function, "notes": str(notes), **whole.config})

    async def timed(run: Any, index: int) -> dict[str, float]:
        began = time.perf_counter()
        metrics = await run_iteration(run, index)
        seconds.append(time.perf_counter() - began)
        return metrics

    GraphRun._work, training.run_iteration = work_with_notes, timed
    train = getattr(importlib.import_module(f"flows.{flow}"), flow)
    words = [f"run_root={folder}", *overrides]
    asyncio.run(train(experiment=experiment, iterations=iterations, seed=0, run_id="account", overrides=words))
    print(json.dumps(summary(notes, seconds)))


def summary(notes: Path, seconds: Sequence[float]) -> dict[str, Any]:
    """Return the recorded times per iteration, in ms and as a fraction of the median iteration."""
    spent: dict[str, Counter[str]] = {"wall": Counter(), "cpu": Counter()}
    for name, wall, cpu in map(json.loads, notes.read_text().splitlines()):
        spent["wall"][name] += wall / len(seconds)
        spent["cpu"][name] += cpu / len(seconds)
    median = statistics.median(seconds)
    figures: dict[str, Any] = {"iterations": len(seconds), "median_ms": round(1000 * median, 1)}
    for clock, by_name in spent.items():
        figures[f"{clock}_share"] = round(by_name.total() / median, 4)
        figures[f"{clock}_ms"] = {name: round(1000 * each, 2) for name, each in sorted(by_name.items())}
    longest = sum(spent["wall" if name in IN_WORKERS else "cpu"][name] for name in spent["wall"])
    return figures | {"most_share": round(longest / median, 4)}


def noted(function: Callable[..., Any], notes: Path) -> Callable[..., Any]:
    """Return the function with wall and CPU seconds recorded for each call, except calls from a recorded function."""

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if getattr(_DEPTH, "value", 0):
            return function(*args, **kwargs)
        with _below():
            began = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - began[0], time.thread_time() - began[1]
                with notes.open("a") as file:
                    file.write(json.dumps([function.__qualname__, wall, cpu]) + "\n")

    return timed


@contextmanager
def _below() -> Iterator[None]:
    _DEPTH.value = 1
    try:
        yield
    finally:
        _DEPTH.value = 0


def kept_node(batch: Any, config: Any, **words: Any) -> Any:
    """Run a node in a worker that records the time to keep the node's rows.

    The worker's own call that writes the rows cannot be patched, because Ray sends its class by value. So this writes
    them a second time.
    """
    from embodyflow.data.batches import to_columns
    from embodyflow.data.padding import to_ragged
    from embodyflow.data.rows_file import write_rows
    from embodyflow.references import resolve

    notes = Path(config["notes"])
    _note_in_worker(notes)
    rest = {key: value for key, value in config.items() if key not in ("noted", "notes")}
    output = resolve(config["noted"])(batch, rest, **words)
    if output.batch is not None:
        noted(write_rows, notes)(notes.with_name(f"{os.getpid()}.rows"), to_ragged(to_columns(output.batch)))
    return output


@functools.cache
def _note_in_worker(notes: Path) -> None:
    from embodyflow.data.rows_file import Journal
    from embodyflow.rollouts.open_episodes import OpenEpisodesFolder

    for place, name in ((Journal, "append"), (Journal, "read"), (Journal, "replace"), (OpenEpisodesFolder, "write")):
        setattr(place, name, noted(getattr(place, name), notes))
