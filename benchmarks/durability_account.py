"""The seconds in which a job keeps its rows, its ledger and its checkpoints for good, added up wherever they pass.

What :mod:`benchmarks.durability` compares is as exact as two runs are equally fast. This adds up what is done for
durability and nothing else. What workers do an iteration waits for; what the flow's process does is done in threads,
beside the next iteration, which lacks a core for it at most. So an iteration takes no longer than by the seconds of the
one and the CPU seconds of the other: ``most_share``.
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

NODE = "benchmarks.durability_account:kept_node"
IN_WORKERS = ("write_rows", "Journal.append", "Journal.read", "Journal.replace", "OpenEpisodesFolder.write")
_DEPTH = local()  # of timed functions that call one another, by thread


def run_and_account(flow: str, experiment: str, iterations: int, folder: str, overrides: Sequence[str]) -> None:
    """Run a job; print what is kept for good costs an iteration of it, as JSON.

    Args:
        flow: name of the flow.
        experiment, iterations, overrides: as for the flow.
        folder: for the run, and for what is noted.
    """
    import embodyflow.orchestration.run.stages as stages
    import embodyflow.record.checkpoints as checkpoints
    import embodyflow.record.metrics_log as metrics_log
    from embodyflow.orchestration.run.graph_run import GraphRun
    from embodyflow.record.ledger import Ledger
    from embodyflow.record.stage_rows import StageRows

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
    """Return what was noted by iteration, in ms and as a share of the median iteration."""
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
    """Return the function with the seconds of each call noted, wall and CPU, unless another noted one calls it."""

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
    """Be a node whose rows are kept, in a worker that notes what that takes.

    The worker's own call to write the rows is out of reach here (Ray has sent its class by value), so they are written
    once more.
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
