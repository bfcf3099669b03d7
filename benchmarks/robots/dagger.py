"""DAgger beside cloning with equal optimizer steps: success on unseen goals by the number of demonstrations.

    python -m benchmarks.robots.dagger --seeds 11511 11512 11513

Each run is one process without Ray and Prefect (:mod:`benchmarks.control.in_process`). Cloning fits the policy to 4, 8,
16 or 40 demonstrations. DAgger begins with 4 and plays ``ITERATIONS`` iterations. All take the same number of optimizer
steps at the same learning rate. The greedy policy plays the goals of the evaluation split.

Each seed is added to ``benchmarks/results/dagger.json``, where it replaces figures of the same seed.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from benchmarks.report import write_report

RESULTS = ROOT / "benchmarks/results/dagger.json"
EXPERIMENT, DEMONSTRATIONS, ITERATIONS = "pick_place", (4, 8, 16, 40), 10


def imitate(seed: int, num_demos: int, iterations: int, *words: str) -> tuple[InProcessRun, dict[str, Any]]:
    """Clone demonstrations, then train by DAgger; return the run and the success with the labels that it took."""
    numbers = (f"seed={seed}", f"warm_start.num_demos={num_demos}", f"iterations={max(iterations, 1)}")
    run = InProcessRun([f"experiment={EXPERIMENT}", "algorithm=dagger", *numbers, *words])
    started, labels = time.process_time(), 0
    run.warm_start()
    for iteration in range(1, iterations + 1):
        labels += int(run.iterate(iteration)["dagger/num_labels"])
    seconds = time.process_time() - started
    facts = {"demonstrations": num_demos, "labels": labels, "cpu_seconds": round(seconds, 1)}
    return run, facts | {"success": statistics.mean(run.success())}


def compare(seed: int) -> dict[str, Any]:
    """Return the success of all contenders with a seed."""
    run, dagger = imitate(seed, DEMONSTRATIONS[0], ITERATIONS)
    num_steps = run.config.warm_start.steps + ITERATIONS * run.config.dagger.steps
    equal = (f"warm_start.steps={num_steps}", f"warm_start.learning_rate={run.config.trainer.learning_rate}")
    row: dict[str, Any] = {"seed": seed, "optimizer_steps": num_steps, "dagger": dagger}
    row["cloning"] = [imitate(seed, number, 0, *equal)[1] for number in DEMONSTRATIONS]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11511, 11512, 11513])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    for seed in arguments.seeds:
        row = compare(seed)
        print(row, flush=True)
        rows = sorted([*(each for each in rows if each["seed"] != seed), row], key=lambda each: each["seed"])
        settings = {"experiment": EXPERIMENT, "iterations": ITERATIONS}
        write_report(arguments.output, ("torch", "metaworld", "mujoco"), rows, **settings)


if __name__ == "__main__":
    main()
