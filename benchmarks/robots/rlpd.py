"""RLPD, DrQ or DSRL on an embodied experiment: success on unseen goals by environment steps, beside GRPO's episodes.

    python -m benchmarks.robots.rlpd --experiment push --seeds 0 1 2
    python -m benchmarks.robots.rlpd --experiment push --algorithm dsrl --seeds 0
    python -m benchmarks.robots.rlpd --experiment drawer_open --algorithm drq --seeds 0 --blind

Each seed runs in one process, without Ray and Prefect (:mod:`benchmarks.control.in_process`). Every ``--every``
iterations the greedy policy plays the goals of the evaluation split. GRPO's figures are those of
``benchmarks/results/learning_<experiment>.json``, with as many demonstrations as its experiment states. DSRL's runs
also have ``frozen_success``, that of the frozen policy from standard normals, the noise that it was trained with. With
``--blind`` all images that DrQ sees are black: what it then reaches needs no images.

Runs are added to ``benchmarks/results/<algorithm>_<experiment>.json``, where they replace runs with the same seed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from embodyflow.policies.base import Decision
from embodyflow.policies.embodied.cnn_chunks.policy_cnn_chunks import CNNChunksPolicy
from embodyflow.policies.embodied.steered.policy_steered import SteeredPolicy
from embodyflow.seeding import derive_rng

RESULTS = ROOT / "benchmarks" / "results"


def train(experiment: str, algorithm: str, seed: int, every: int, words: list[str], *, blind: bool) -> dict[str, Any]:
    """Train with one seed; return the curve of success by environment steps."""
    run = InProcessRun([f"experiment={experiment}", f"algorithm={algorithm}", f"seed={seed}", *words])
    if blind:
        make_blind(run.rollout.policy)
        make_blind(cast(CNNChunksPolicy, run.trainer.policy))
    run.warm_start()
    frozen = {"frozen_success": frozen_success(run)} if algorithm == "dsrl" else {}
    steps, episodes, updates = 0, 0, 0
    points = [{"steps": 0, "episodes": 0, "success": statistics.mean(run.success())}]
    print(f"seed {seed}: {points[0]}", frozen, flush=True)
    started = time.process_time()
    for iteration in range(1, run.config.iterations + 1):
        metrics = run.iterate(iteration)
        steps += int(metrics["rollout/num_steps"])
        episodes += int(metrics["rollout/num_episodes"])
        updates += int(metrics["train/optimizer_steps"])
        shown = ("rollout/success_rate", "critic/value", "policy/entropy", "policy/temperature")
        print(iteration, steps, *(f"{metrics[name]:.3f}" for name in shown if name in metrics), flush=True)
        if iteration % every == 0 or iteration == run.config.iterations:
            points.append({"steps": steps, "episodes": episodes, "success": statistics.mean(run.success())})
            print(f"seed {seed}: {points[-1]}, {time.process_time() - started:.0f} CPU seconds", flush=True)
    facts = {
        "seed": seed,
        **({"blind": True} if blind else {}),
        "steps": steps,
        "episodes": episodes,
        "updates": updates,
        **frozen,
        "points": points,
    }
    return facts | {"cpu_seconds": round(time.process_time() - started, 1)}


def make_blind(policy: CNNChunksPolicy) -> None:
    """Make all images black that a policy sees."""
    see = policy.encode

    def encode(state: torch.Tensor, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return see(state, {camera: torch.zeros_like(images[camera]) for camera in policy.config.cameras})

    policy.encode = encode


def frozen_success(run: InProcessRun) -> float:
    """Return the success of the policy that a run steers, from standard normal noise, on the evaluation's goals."""
    policy: SteeredPolicy = run.rollout.policy
    rng, steered = derive_rng(run.config.seed, "frozen"), policy.act

    def act(observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        noise = rng.standard_normal((len(observation["state"]), policy.horizon, policy.base.noise_dim), np.float32)
        actions = policy.follow(observation, torch.from_numpy(noise))
        return replace(steered(observation, uniforms, temperature), actions=actions)

    policy.act = act
    success = statistics.mean(run.success())
    policy.act = steered
    return success


def save(path: Path, experiment: str, runs: list[dict[str, Any]]) -> None:
    """Write the runs beside the final success and the number of episodes of GRPO."""
    found = RESULTS / f"learning_{experiment}.json"
    peer = json.loads(found.read_text())["grpo"] if found.exists() else None
    grpo = peer and {
        "success_after": peer["mean"]["success_rate_after"],
        "episodes": statistics.mean(run["num_episodes"] for run in peer["runs"]),
    }
    document = {"grpo": grpo, "runs": sorted(runs, key=_kind)}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _kind(run: dict[str, Any]) -> tuple[bool, int]:
    """Return whether the run was blind, and its seed: no other run of a file has both."""
    return run.get("blind", False), run["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="push")
    parser.add_argument("--algorithm", choices=["rlpd", "drq", "dsrl"], default="rlpd")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--every", type=int, default=10, help="iterations between evaluations")
    parser.add_argument("--blind", action="store_true", help="DrQ sees black images")
    parser.add_argument("--no-save", action="store_true", help="print only")
    arguments, words = parser.parse_known_args()
    path = RESULTS / f"{arguments.algorithm}_{arguments.experiment}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    for seed in arguments.seeds:
        run = train(arguments.experiment, arguments.algorithm, seed, arguments.every, words, blind=arguments.blind)
        runs = [other for other in runs if _kind(other) != _kind(run)] + [run]
        if not arguments.no_save:
            save(path, arguments.experiment, runs)


if __name__ == "__main__":
    main()
