"""SAC for continuous control by our nodes and by Stable-Baselines3: learning curves and speed.

    python -m benchmarks.control.sac_control --experiment pendulum --steps 10000 --seeds 0 1 2
    python -m benchmarks.control.sac_control --experiment hopper --steps 30000 --seeds 0 1 2 trainer.compile=true

Both have the same environment, hyper-parameters, numbers of steps and updates, and one thread. Each runs in a process
of its own without Ray and Prefect, ours by :mod:`benchmarks.control.in_process`. The two take turns seed by seed. A
curve shows the mean return of the training episodes that ended in each thousand steps. Seconds cover collecting and
learning after the first iteration with updates, in which torch compiles ours with ``trainer.compile=true``. CPU seconds
are the process's own, which other work on the machine changes least.

Runs are added to ``benchmarks/results/sac_control.json``, where they replace runs with the same experiment and seed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/sac_control.json"
EVERY, EVALUATION_EPISODES = 1000, 10
EXPERIMENTS: dict[str, list[str]] = {
    "pendulum": ["experiment=pendulum"],
    "half_cheetah": ["experiment=half_cheetah", "algorithm=sac"],
    "hopper": [
        *("experiment=half_cheetah", "algorithm=sac", "env.id=Hopper-v5"),
        *("policy.state_dim=11", "policy.action_dim=3"),
    ],
}
"""Overrides of each experiment."""


class Clock:
    """Wall and CPU seconds since it was started."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}


def ours(words: list[str]) -> dict[str, Any]:
    """Train with our nodes."""
    from benchmarks.control.in_process import InProcessRun

    run = InProcessRun(words)
    run.warm_start()
    size, ended, num_updates, clock = run.config.rows_per_iteration, [], 0, None
    for iteration in range(1, run.config.iterations + 1):
        metrics = run.iterate(iteration)
        num_updates += int(metrics["train/optimizer_steps"])
        clock = clock or (Clock() if metrics["train/optimizer_steps"] else None)
        if count := int(metrics["rollout/num_episodes"]):
            ended.append((iteration * size, metrics["rollout/reward"], count))
    assert clock is not None, "there were no updates"
    seconds = clock.read()
    return {
        "ended": ended,
        "updates": num_updates,
        **seconds,
        "final": run.rollout.evaluate(range(EVALUATION_EPISODES)).returns,
    }


def stable_baselines3(words: list[str]) -> dict[str, Any]:
    """Train with SB3."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    from embodyflow.config.composition.compose import compose_config

    class Watch(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.ended: list[tuple[int, float, int]] = []
            self.clock: Clock | None = None

        def _on_rollout_start(self) -> None:
            self.clock = self.clock or (Clock() if self.model._n_updates else None)

        def _on_step(self) -> bool:
            infos = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            self.ended += [(self.num_timesteps, float(info["r"]), 1) for info in infos]
            return True

    torch.set_num_threads(1)
    config: Any = compose_config(words)
    model, watch = build(config), Watch()
    model.learn(config.iterations * config.rows_per_iteration, callback=watch)
    assert watch.clock is not None, "there were no updates"
    facts = {"ended": watch.ended, "updates": model._n_updates, **watch.clock.read()}
    returns, _ = evaluate_policy(model, model.env, EVALUATION_EPISODES, return_episode_rewards=True)
    return {**facts, "final": returns}


def build(config: Any) -> Any:
    """Return SB3's SAC with the environment and hyper-parameters of a control job."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    settings, rollout, policy = config.off_policy, config.rollout, config.policy
    assert config.trainer.learning_rate == config.critic.learning_rate == settings.temperature.learning_rate
    num_envs = rollout.num_workers * rollout.envs_per_worker
    updates = settings.updates_per_transition * config.rows_per_iteration
    assert updates == int(updates)
    target = settings.temperature.target_entropy
    return SAC(
        "MlpPolicy",
        make_vec_env(config.env.id, num_envs, seed=config.seed),
        learning_rate=config.trainer.learning_rate,
        buffer_size=settings.replay_capacity,
        learning_starts=settings.random_transitions,
        batch_size=settings.batch_size,
        tau=settings.target_rate,
        gamma=config.algorithm.gamma,
        train_freq=rollout.num_steps,
        gradient_steps=int(updates),
        ent_coef=f"auto_{settings.temperature.initial}",
        target_entropy="auto" if target is None else target,
        policy_kwargs={"net_arch": [policy.hidden_size] * policy.num_layers, "n_critics": policy.num_critics},
        seed=config.seed,
        device="cpu",
    )


CONTENDERS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "embodyflow": ours,
    "stable-baselines3": stable_baselines3,
}


def measure(name: str, experiment: str, steps: int, seed: int, words: list[str]) -> dict[str, Any]:
    """Run one contender with one seed in a process of its own."""
    size = 50  # steps of an iteration, those of the recipe
    chosen = [*EXPERIMENTS[experiment], f"iterations={steps // size}", f"seed={seed}", *words]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        command = [
            sys.executable,
            "-m",
            "benchmarks.control.sac_control",
            "--contender",
            name,
            "--answer",
            str(answer),
            *chosen,
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        facts = json.loads(answer.read_text())
    return {
        "contender": name,
        "experiment": experiment,
        "seed": seed,
        "steps": steps,
        "updates": facts["updates"],
        "curve": curve(facts["ended"]),
        "final_return": statistics.mean(facts["final"]),
        "wall_seconds": round(facts["wall"], 1),
        "cpu_seconds": round(facts["cpu"], 1),
    }


def curve(ended: list[tuple[int, float, int]]) -> dict[str, float]:
    """Return the mean return of the episodes that ended in each thousand steps, by its last step."""
    parts: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for step, value, count in ended:
        parts[(step + EVERY - 1) // EVERY * EVERY].append((value, count))
    return {
        str(step): round(float(np.average([v for v, _ in part], weights=[n for _, n in part])), 1)
        for step, part in sorted(parts.items())
    }


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return ratios of seconds (ours by its, of medians), final returns, and points at which seeds' ranges overlap."""
    mine, peers = ([run for run in runs if run["contender"] == name] for name in CONTENDERS)
    steps = [step for step in mine[0]["curve"] if all(step in run["curve"] for run in runs)]
    ranges = [[[run["curve"][step] for run in side] for side in (mine, peers)] for step in steps]
    seconds = {
        kind: [statistics.median(run[kind] for run in side) for side in (mine, peers)]
        for kind in ("cpu_seconds", "wall_seconds")
    }
    return {
        **{f"{kind}_ratio": ours / its for kind, (ours, its) in seconds.items()},
        "final_returns": {
            name: [run["final_return"] for run in side] for name, side in zip(CONTENDERS, (mine, peers), strict=True)
        },
        "overlapping_points": sum(min(a) <= max(b) and min(b) <= max(a) for a, b in ranges),
        "num_points": len(steps),
    }


def save(runs: list[dict[str, Any]], results: Path) -> None:
    """Write the runs and, for experiments that both have run, their comparison."""
    comparisons = {}
    for experiment in sorted({run["experiment"] for run in runs}):
        of_it = [run for run in runs if run["experiment"] == experiment]
        if {run["contender"] for run in of_it} == CONTENDERS.keys():
            comparisons[experiment] = compare(of_it)
    results.write_text(json.dumps({"cpus": os.cpu_count(), "comparisons": comparisons, "runs": runs}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", choices=list(EXPERIMENTS), default="pendulum")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if arguments.contender:
        arguments.answer.write_text(json.dumps(CONTENDERS[arguments.contender](words)))
        return
    runs: list[dict[str, Any]] = []
    if arguments.output.exists():
        runs = json.loads(arguments.output.read_text())["runs"]
    keys = ("contender", "experiment", "seed")
    for seed in arguments.seeds:
        for name in CONTENDERS:
            run = measure(name, arguments.experiment, arguments.steps, seed, words)
            runs = [other for other in runs if any(other[key] != run[key] for key in keys)] + [run]
            print(json.dumps(run), flush=True)
            save(runs, arguments.output)


if __name__ == "__main__":
    main()
