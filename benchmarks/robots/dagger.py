"""DAgger beside cloning with equal optimizer steps: success on unseen goals by the number of demonstrations.

    python -m benchmarks.robots.dagger --seeds 11511 11512 11513

Each run is one process without Ray and Prefect (:mod:`benchmarks.control.in_process`). Cloning fits the policy to 4, 8,
16 or 40 demonstrations. DAgger begins with 4 and plays ``ITERATIONS`` iterations. All take the same number of optimizer
steps at the same learning rate. The greedy policy plays the goals of the evaluation split.

Each seed is added to ``benchmarks/results/dagger.json``, where it replaces figures of the same seed.

    python -m benchmarks.robots.dagger --recipes stack --seeds 11611 11612
    python -m benchmarks.robots.dagger --recipes door --seeds 11931 11932

train experiments whose algorithm is DAgger by default as they are shipped, and add each run to
``benchmarks/results/dagger_recipes.json``.
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

RESULTS, RECIPES = (ROOT / f"benchmarks/results/{name}.json" for name in ("dagger", "dagger_recipes"))
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


def learn(experiment: str, seed: int) -> dict[str, Any]:
    """Train an experiment as it is shipped; return its success before and after, and in each iteration."""
    run = InProcessRun([f"experiment={experiment}", f"seed={seed}"])
    started = time.process_time()
    run.warm_start()
    seconds = time.process_time() - started
    row: dict[str, Any] = {"experiment": experiment, "seed": seed, "demonstrations": run.config.warm_start.num_demos}
    row |= {"cloned": statistics.mean(run.success()), "num_goals": run.config.evaluation.num_goals}
    started = time.process_time()
    metrics = [run.iterate(iteration) for iteration in range(1, run.config.iterations + 1)]
    row |= {"cpu_seconds": round(seconds + time.process_time() - started, 1), "success": statistics.mean(run.success())}
    curve = [round(each["rollout/success_rate"], 4) for each in metrics]
    counted = {"episodes": "rollout/num_episodes", "labels": "dagger/num_labels"}
    return row | {"curve": curve, **{name: int(sum(each[key] for each in metrics)) for name, key in counted.items()}}


def add(output: Path, row: dict[str, Any], packages: tuple[str, ...], **settings: Any) -> None:
    """Add a row to a file of results, where it replaces the row of the same experiment and seed."""
    print(row, flush=True)

    def name(each: dict[str, Any]) -> tuple[str, int]:
        return each.get("experiment", EXPERIMENT), each["seed"]

    rows = json.loads(output.read_text())["comparisons"] if output.exists() else []
    rows = sorted([*(each for each in rows if name(each) != name(row)), row], key=name)
    write_report(output, packages, rows, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11511, 11512, 11513])
    parser.add_argument("--recipes", nargs="+", default=[], help="experiments to train in place of the comparison")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output or (RECIPES if arguments.recipes else RESULTS)
    for seed in arguments.seeds:
        for experiment in arguments.recipes:
            add(output, learn(experiment, seed), ("torch", "mujoco"))
        if not arguments.recipes:
            settings = {"experiment": EXPERIMENT, "iterations": ITERATIONS}
            add(output, compare(seed), ("torch", "metaworld", "mujoco"), **settings)


if __name__ == "__main__":
    main()
