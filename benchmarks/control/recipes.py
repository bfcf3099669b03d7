"""Recipes of control jobs with rewards in every step: greedy returns before and after training.

    python -m benchmarks.control.recipes --experiment cartpole_swingup --seeds 0 1

A run trains as ``python -m flows.<flow> experiment=<experiment>`` does, in one process
(:mod:`benchmarks.control.in_process`). The returns are means of ten episodes with the policy's deterministic actions,
which begin in the same states before and after. ``benchmarks/results/control_recipes.json`` has the results, in which a
run replaces that of the same experiment and seed. Recipes with sparse rewards are in
:mod:`benchmarks.control.hindsight`.
"""

import argparse
import json
import statistics
import time
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from benchmarks.control.ppo_control import runs_in, with_run

RESULTS = ROOT / "benchmarks/results/control_recipes.json"
EPISODES = 10


def measure(experiment: str, seed: int) -> dict[str, Any]:
    """Train a recipe; return its facts."""
    run = InProcessRun([f"experiment={experiment}", f"seed={seed}"])
    run.warm_start()
    before, began = greedy_return(run), time.process_time()
    for iteration in range(1, run.config.iterations + 1):
        run.iterate(iteration)
    seconds, after = time.process_time() - began, greedy_return(run)
    steps = run.config.iterations * run.config.rows_per_iteration
    run.rollout.close()
    run.trainer.close()
    facts = {"experiment": experiment, "seed": seed, "algorithm": run.config.algorithm_name, "steps": steps}
    return {**facts, "return_before": before, "return_after": after, "cpu_seconds": round(seconds, 1)}


def greedy_return(run: InProcessRun) -> float:
    """Return the mean return of the evaluation episodes."""
    return round(statistics.mean(run.rollout.evaluate(range(EPISODES)).returns), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="cartpole_swingup")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    runs = runs_in(RESULTS)
    for seed in arguments.seeds:
        run = measure(arguments.experiment, seed)
        print(json.dumps(run), flush=True)
        runs = sorted(with_run(runs, run, ("experiment", "seed")), key=lambda each: (each["experiment"], each["seed"]))
        RESULTS.write_text(json.dumps({"episodes": EPISODES, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
