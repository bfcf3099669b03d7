"""PPO on HalfCheetah-v5 with normalised observations and rewards, by our flow and by CleanRL's script: speed.

    PYTHONPATH=<folder with cleanrl 1.2.0> python -m benchmarks.control.cleanrl --seeds 0 1 2

Ours is what a user runs: ``python -m flows.ppo experiment=half_cheetah`` with ``policy.normalize_observations=true``
and ``policy.normalize_returns=true``. CleanRL's is its ``ppo_continuous_action.py`` as it is, with the same sizes of
networks, rollouts and mini-batches and one thread. It is older than Gymnasium 1.0, so the wrapper that clips
observations gets the space that this version asks for. Its episodes' returns are lost, because Gymnasium 1.0 reports
them elsewhere, so this script compares no curves.

The contenders take turns seed by seed. Speed covers everything between the end of the first iteration and the end of
the last. CPU seconds are those of the process and all its children.
"""

import argparse
import importlib.util
import json
import runpy
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.control.ppo_control import speed_of, watch
from benchmarks.control.ppo_normalized import NORMALISED
from benchmarks.report import write_report

RESULTS = ROOT / "benchmarks/results/cleanrl.json"
SCRIPT = "cleanrl.ppo_continuous_action"
OURS, PEER = "embodyflow", "cleanrl"


def measure(name: str, iterations: int, seed: int, own_words: list[str]) -> dict[str, Any]:
    """Run one contender with one seed; return its environment steps per second by the clock and of CPU time."""
    words = ["experiment=half_cheetah", f"iterations={iterations}", f"seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        if name == PEER:
            metrics = Path(folder, "metrics.jsonl")
            command = ["-m", "benchmarks.control.cleanrl", "--peer", str(metrics), *words]
        else:
            metrics = Path(folder, "run", "metrics.jsonl")
            words += [*NORMALISED, *own_words, f"run_root={folder}", "run_id=run", "tracking.tensorboard=false"]
            command = ["-m", "flows.ppo", *words]
        records = watch([sys.executable, *command], metrics, Path(folder, "log"))
    return {"contender": name, "seed": seed, "iterations": len(records), **speed_of(records)}


def run_script(metrics: Path, words: list[str]) -> None:
    """Run CleanRL's script in this process, and write a line after each of its iterations."""
    import gymnasium as gym
    import torch
    from torch.utils import tensorboard

    from embodyflow.config.composition.compose import compose_config

    config: Any = compose_config([*words, "algorithm=ppo"])
    rollout, trainer, algorithm = config.rollout, config.trainer, config.algorithm
    torch.set_num_threads(1)
    clip = gym.wrappers.TransformObservation
    gym.wrappers.TransformObservation = lambda env, func: clip(env, func, env.observation_space)  # type: ignore[misc]

    class Writer(tensorboard.SummaryWriter):
        def add_scalar(self, tag: str, *values: Any) -> None:
            super().add_scalar(tag, *values)
            if tag == "charts/SPS":  # the last of an iteration
                with metrics.open("a") as file:
                    file.write(json.dumps({"rollout/num_steps": config.rows_per_iteration}) + "\n")

    tensorboard.SummaryWriter = Writer  # type: ignore[misc]
    options = {
        "env-id": config.env.id,
        "seed": config.seed,
        "num-envs": rollout.num_workers * rollout.envs_per_worker,
        "num-steps": rollout.num_steps,
        "total-timesteps": config.iterations * config.rows_per_iteration,
        "num-minibatches": trainer.num_minibatches,
        "update-epochs": trainer.epochs,
        "learning-rate": trainer.learning_rate,
        "gamma": algorithm.gamma,
        "gae-lambda": algorithm.lam,
        "max-grad-norm": trainer.max_grad_norm,
    }
    sys.argv = [SCRIPT, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    runpy.run_module(SCRIPT, run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if arguments.peer:
        run_script(arguments.peer, words)
        return
    if importlib.util.find_spec("cleanrl") is None:
        parser.error("needs cleanrl 1.2.0: install it into a folder of its own, without its dependencies")
    runs = []
    for seed in arguments.seeds:
        for name in (OURS, PEER):
            runs.append(run := measure(name, arguments.iterations, seed, words))
            print(json.dumps(run), flush=True)
    ratios = {
        key: statistics.median(run[key] for run in runs if run["contender"] == OURS)
        / statistics.median(run[key] for run in runs if run["contender"] == PEER)
        for key in ("steps_per_wall_second", "steps_per_cpu_second")
    }
    print(json.dumps(ratios), flush=True)
    comparison = {"words": words, "ratios": ratios, "runs": runs}
    write_report(arguments.output, ("torch", "gymnasium", "mujoco", "ray", "prefect"), [comparison])


if __name__ == "__main__":
    main()
