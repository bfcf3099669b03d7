"""Success of a control recipe's deterministic policy by steps of training.

    python -m benchmarks.control.success --experiment adroit_door --seeds 11922 11923

The environment's info must have ``is_success``. Each run is a process without Ray and Prefect
(:mod:`benchmarks.control.in_process`), with as many environments as all rollout workers of the experiment have. Before
training, after every 32,000 steps and at the end, 50 episodes with the policy's deterministic actions begin in initial
states that training does not play. An episode succeeds if the environment says so in its last step. CPU seconds are
those of the process, with the evaluations.

Runs are added to ``benchmarks/results/success.json``, where they replace runs with the same experiment and seed.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.control.contenders import Contender, facts_of, parse
from benchmarks.control.ppo_control import runs_in, with_run

RESULTS = ROOT / "benchmarks/results/success.json"
EVERY, EPISODES = 32_000, 50
EXPERIMENTS = ("adroit_door",)


def ours(words: list[str]) -> dict[str, Any]:
    """Train with our nodes."""
    from benchmarks.control.in_process import InProcessRun
    from embodyflow.config.composition.compose import compose_config

    rollout: Any = compose_config(words).rollout
    num_envs = rollout.num_workers * rollout.envs_per_worker
    run, began = InProcessRun([*words, f"rollout.envs_per_worker={num_envs}"]), time.process_time()
    run.warm_start()
    size, iterations, points = run.config.rows_per_iteration, run.config.iterations, [_point(run, 0)]
    for iteration in range(1, iterations + 1):
        metrics = run.iterate(iteration)
        if iteration * size % EVERY == 0 or iteration == iterations:
            points.append(_point(run, iteration * size))
            print(json.dumps(points[-1]), f"{time.process_time() - began:.0f} CPU seconds", flush=True)
        elif iteration % 5 == 0:
            print(iteration * size, metrics.get("rollout/reward"), metrics.get("rollout/success_rate"), flush=True)
    return {"points": points, "cpu_seconds": round(time.process_time() - began, 1)}


def _point(run: Any, steps: int) -> dict[str, Any]:
    """Evaluate after so many steps of training."""
    played = run.rollout.evaluate(range(EPISODES))
    success, returned = (statistics.mean(map(float, values)) for values in (played.successes, played.returns))
    return {"steps": steps, "success": success, "return": round(returned, 1)}


CONTENDERS: dict[str, Contender] = {"embodyflow": ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", choices=EXPERIMENTS, default=EXPERIMENTS[0])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments, words = parse(parser, CONTENDERS)
    if words and arguments.output == RESULTS:
        parser.error(f"{' '.join(words)}: needs --output, since the results are those of the experiments as they are")
    runs = runs_in(arguments.output)
    for seed in arguments.seeds:
        chosen = [f"experiment={arguments.experiment}", f"seed={seed}", *words]
        run = {"experiment": arguments.experiment, "seed": seed}
        run |= facts_of("benchmarks.control.success", "embodyflow", chosen)
        runs = sorted(with_run(runs, run, ("experiment", "seed")), key=lambda each: (each["experiment"], each["seed"]))
        print(json.dumps(run), flush=True)
        arguments.output.write_text(json.dumps({"episodes": EPISODES, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
