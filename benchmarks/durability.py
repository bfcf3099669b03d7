"""What it costs that nothing is lost: iterations of the default job with and without rows and ledger on disk.

    python -m benchmarks.durability --rounds 3

Both kinds run in turn, each in a process of its own with the same seed. Without durability no rows are kept, no ledger
is written and checkpoints are neither flushed nor digested; they are written in both. Results go to
``benchmarks/results/durability.json``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "durability.json"


def contend(mode: str, folder: str, iterations: int) -> None:
    """Run the default job; print the seconds of each iteration, its commit included, as JSON."""
    import asyncio

    import embodyflow.run_folder as run_folder
    import flows.graph_run as graph_run
    from flows.grpo import grpo
    from flows.iteration_runs import IterationRuns
    from flows.stages import Stages

    seconds: list[float] = []
    run = IterationRuns.run

    async def timed(self: IterationRuns, index: int) -> Any:
        began = time.perf_counter()
        metrics = await run(self, index)
        seconds.append(time.perf_counter() - began)
        return metrics

    async def nothing(*_: Any) -> None:
        return None

    IterationRuns.run = timed  # type: ignore[method-assign]
    if mode == "off":
        Stages.committed = nothing  # type: ignore[method-assign]
        work = graph_run.GraphRun._work
        graph_run.GraphRun._work = lambda self, node: replace(work(self, node), stage=None)  # type: ignore
        run_folder._flush_and_digest = lambda path: ""
        run_folder.flush = lambda path: None
    overrides = [f"run_root={folder}", "evaluation.video=false"]
    asyncio.run(grpo(experiment="embodied", iterations=iterations, seed=0, run_id=mode, overrides=overrides))
    print(json.dumps(seconds))


def measure(mode: str, iterations: int) -> list[float]:
    """Return the seconds of the iterations of one run, those of its start left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.durability", "--contend", mode, folder, str(iterations)]
        env = os.environ | {"PREFECT_HOME": f"{folder}/prefect", "PREFECT_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, check=True)
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds[2:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        mode, folder, iterations = options.contend
        contend(mode, folder, int(iterations))
        return 0
    seconds: dict[str, list[float]] = {"on": [], "off": []}
    for round_number in range(options.rounds):
        for mode in ("on", "off") if round_number % 2 == 0 else ("off", "on"):
            seconds[mode] += measure(mode, options.iterations)
    medians = {mode: statistics.median(values) for mode, values in seconds.items()}
    figures = {
        "iterations": {mode: len(values) for mode, values in seconds.items()},
        "median_seconds": {mode: round(value, 4) for mode, value in medians.items()},
        "overhead": round(medians["on"] / medians["off"] - 1, 4),
        "seconds": {mode: [round(value, 4) for value in values] for mode, values in seconds.items()},
    }
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "seconds"}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
