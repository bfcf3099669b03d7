"""The cost of durability: iterations of the default jobs with and without rows and ledger on disk.

    python -m benchmarks.orchestration.durability --rounds 2

There is one job of each kind, as shipped with the project: a robot job with 16 groups per iteration, a language job and
a control job.

Two processes are never equally fast, so both modes alternate within one: four iterations with durability, four without,
and the other way round in a second run with the same seed. Each iteration is compared with the same iteration of the
other run. The first of each four is left out, because it carries background work of the previous mode. Without
durability, a run keeps no rows, writes no ledger, and neither flushes nor digests checkpoints. It still writes them.

The comparison is only as exact as the two runs are equally fast. So one more run of each job adds up the time that goes
into durability alone (:mod:`benchmarks.orchestration.durability_account`). Results go to
``benchmarks/results/durability.json``. Results of jobs that are not chosen (``--jobs math``) stay there, and with
``--rounds 0`` so does the comparison.
"""

import argparse
import importlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.orchestration.durability_account import run_and_account

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "durability.json"
BLOCK = 4  # consecutive iterations in the same mode
JOBS = {  # flow and overrides by experiment
    "embodied": ("grpo", ["evaluation.video=false", "rollout.num_groups=16"]),
    "math": ("grpo", []),
    "reacher": ("ppo", []),
}
IS_DURABLE = ContextVar("IS_DURABLE", default=True)


def is_durable(index: int, first: str) -> bool:
    """Return True if an iteration is durable in a run whose first mode is ``first``, ``"on"`` or ``"off"``."""
    return ((index - 1) // BLOCK % 2 == 0) == (first == "on")


def contend(job: str, first: str, folder: str, iterations: int) -> None:
    """Run a job; print the seconds of each iteration, including its commit, as JSON."""
    import asyncio

    training: Any = importlib.import_module("embodyflow.orchestration.run.training")
    seconds: list[float] = []
    run_iteration = training.run_iteration

    async def timed(run: Any, index: int) -> dict[str, float]:
        began = time.perf_counter()
        metrics = await run_iteration(run, index)
        seconds.append(time.perf_counter() - began)
        return metrics

    training.run_iteration = timed
    take_turns(first)
    name, words = JOBS[job]
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    overrides = [f"run_root={folder}", *words]
    asyncio.run(flow(experiment=job, iterations=iterations, seed=0, run_id=first, overrides=overrides))
    print(json.dumps(seconds))


def take_turns(first: str) -> None:
    """Patch the run so that iterations without durability write nothing but their checkpoint."""
    from embodyflow.orchestration.run.iterations.graph_run import GraphRun
    from embodyflow.orchestration.run.stages import Stages

    checkpoints: Any = importlib.import_module("embodyflow.record.checkpoints")
    metrics_log: Any = importlib.import_module("embodyflow.record.metrics_log")
    work, commit, record_commit = GraphRun._work, Stages._commit, Stages.record_commit
    digest, flush = checkpoints._flush_and_digest, checkpoints.flush

    def work_in_turn(self: GraphRun, node: Any) -> Any:
        whole = work(self, node)
        return whole if is_durable(whole.iteration, first) else replace(whole, stage=None)

    async def commit_in_turn(self: Stages, iteration: int, *rest: Any, is_evaluated: bool) -> None:
        IS_DURABLE.set(is_durable(iteration, first))
        await commit(self, iteration, *rest, is_evaluated=is_evaluated)

    async def committed_in_turn(self: Stages, iteration: int, facts: dict[str, Any]) -> None:
        if is_durable(iteration, first):
            await record_commit(self, iteration, facts)

    GraphRun._work = work_in_turn
    Stages._commit, Stages.record_commit = commit_in_turn, committed_in_turn
    checkpoints._flush_and_digest = lambda path: digest(path) if IS_DURABLE.get() else ""
    checkpoints.flush = metrics_log.flush = lambda path: flush(path) if IS_DURABLE.get() else None


def run_apart(job: str, kind: str, iterations: int) -> Any:
    """Return the output of a run in its own process; ``kind`` is ``account`` or the first mode, ``on`` or ``off``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.orchestration.durability",
            "--contend",
            job,
            kind,
            folder,
            str(iterations),
        ]
        env = os.environ | {"PREFECT_HOME": f"{folder}/prefect", "PREFECT_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(job: str, first: str, iterations: int) -> dict[int, float]:
    """Return the seconds of the iterations of one run by index, without the first of each block."""
    seconds = run_apart(job, first, iterations)
    return {index: each for index, each in enumerate(seconds, start=1) if (index - 1) % BLOCK}


def compare(job: str, rounds: int, iterations: int) -> dict[str, Any]:
    """Return the figures of a job: the cost of durability as a fraction of an iteration without it."""
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    ratios: dict[bool, list[float]] = {True: [], False: []}  # key: the run that starts with "on" was the durable one
    for _ in range(rounds):
        runs = {first: measure(job, first, iterations) for first in ("on", "off")}
        for index in runs["on"]:
            here = is_durable(index, "on")
            on, off = (runs["on"][index], runs["off"][index])[:: 1 if here else -1]
            seconds["on"].append(round(on, 4))
            seconds["off"].append(round(off, 4))
            ratios[here].append(on / off)
    medians = {mode: round(statistics.median(values), 4) for mode, values in seconds.items()}
    shares = {"overhead": round(overhead_of(list(ratios.values())), 4), "interval": interval(list(ratios.values()))}
    return {"pairs": len(seconds["on"]), "median_seconds": medians, **shares, "seconds": seconds}


def overhead_of(halves: list[list[float]]) -> float:
    """Return the cost of durability from two lists of ratios, one for each run being the durable one.

    If one run is slower as a whole, it is the durable one in only half of the pairs, so its slowness cancels out.
    """
    return math.prod(statistics.median(each) for each in halves) ** 0.5 - 1


def interval(halves: list[list[float]]) -> tuple[float, float]:
    """Return the 95 % bootstrap confidence interval of the overhead."""
    rng = random.Random(0)
    drawn = [overhead_of([rng.choices(each, k=len(each)) for each in halves]) for _ in range(2000)]
    low, *_, high = statistics.quantiles(drawn, n=40)
    return round(low, 4), round(high, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8 * BLOCK)
    parser.add_argument("--contend", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        job, kind, folder, iterations = options.contend
        if kind == "account":
            run_and_account(JOBS[job][0], job, int(iterations), folder, JOBS[job][1])
        else:
            contend(job, kind, folder, int(iterations))
        return 0
    figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for job in options.jobs:
        account = run_apart(job, "account", options.iterations)
        compared = compare(job, options.rounds, options.iterations) if options.rounds else figures.get(job, {})
        figures[job] = compared | {"account": account}
        print(job, json.dumps({key: value for key, value in figures[job].items() if key != "seconds"}), flush=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
