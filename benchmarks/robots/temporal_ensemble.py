"""A cloned ACT that executes whole chunks beside the same weights with temporal ensembling.

    python -m benchmarks.robots.temporal_ensemble --seeds 11951 11952 11953

Each run is one process without Ray and Prefect (:mod:`benchmarks.control.in_process`). ACT is cloned from scripted
demonstrations of push-v3 with chunks of ``CHUNK`` actions. Its greedy policy plays the goals of the evaluation split by
chunks, and by ``evaluation.temporal_ensemble_coeff`` of each of ``COEFFICIENTS``. The jump of an action is the mean
absolute difference from the action before it, over the dimensions and the steps of all episodes.

Each seed is added to ``benchmarks/results/temporal_ensemble.json``, where it replaces figures of the same seed.
"""

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from benchmarks.control.ppo_control import with_run
from benchmarks.report import write_report
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout

RESULTS = ROOT / "benchmarks/results/temporal_ensemble.json"
CHUNK, COEFFICIENTS = 10, (0.0, 0.01, 0.1)
CLONING = (
    *("experiment=push", "policy=tiny_act", f"policy.chunk_size={CHUNK}", "warm_start.steps=1000"),
    *("warm_start.num_demos=10", "iterations=1", "evaluation.num_goals=192"),
)


def greedy(run: InProcessRun, coefficient: float | None) -> dict[str, Any]:
    """Return the success, the steps and the jumps of a run's greedy policy on the goals of the evaluation split."""
    evaluation = run.config.evaluation.model_copy(update={"temporal_ensemble_coeff": coefficient})
    with closing(EmbodiedRollout(run.config.model_copy(update={"evaluation": evaluation}), 0, 1)) as rollout:
        rollout.policy.model.load_state_dict(run.rollout.policy.model.state_dict())
        rows = rollout.play(rollout.evaluation_episodes(), "eval", None)
    episodes = zip(rows["actions"], rows["num_steps"], strict=True)
    actions = [chunks.reshape(-1, chunks.shape[-1])[:num_steps] for chunks, num_steps in episodes]
    jumps = np.concatenate([np.abs(np.diff(each, axis=0)) for each in actions])
    success, steps = rows["success"].mean(), rows["num_steps"].mean()
    return {"coefficient": coefficient, "success": float(success), "steps": float(steps), "jump": float(jumps.mean())}


def compare(seed: int) -> dict[str, Any]:
    """Return the figures of a clone by chunks and by each coefficient."""
    run = InProcessRun([*CLONING, f"seed={seed}"])
    run.warm_start()
    num_goals = run.config.evaluation.num_goals
    return {"seed": seed, "num_goals": num_goals, "greedy": [greedy(run, each) for each in (None, *COEFFICIENTS)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11951, 11952, 11953])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    for seed in arguments.seeds:
        row = compare(seed)
        print(row, flush=True)
        rows = sorted(with_run(rows, row, ("seed",)), key=lambda each: each["seed"])
        write_report(arguments.output, ("torch", "metaworld", "mujoco"), rows, chunk=CHUNK, cloning=CLONING)


if __name__ == "__main__":
    main()
