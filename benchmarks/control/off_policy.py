"""SAC, TD3 and CrossQ for continuous control by our nodes and by Stable-Baselines3: learning curves and speed.

    python -m benchmarks.control.off_policy --experiment pendulum --steps 10000 --seeds 0 1 2
    python -m benchmarks.control.off_policy --experiment hopper --steps 30000 --seeds 0 1 2 trainer.compile=true
    python -m benchmarks.control.off_policy --experiment "pendulum, CrossQ"

CrossQ's peer is sb3-contrib's; its critics have 256 features, since 1,024 take eight times as long. Both have the same
environment, hyper-parameters, numbers of steps and updates, and one thread. Each runs in a process of its own without
Ray and Prefect, ours by :mod:`benchmarks.control.in_process`. The two take turns seed by seed. A curve shows the mean
return of the training episodes that ended in each thousand steps. Seconds cover collecting and learning after the first
iteration with updates, in which torch compiles ours with ``trainer.compile=true``. CPU seconds are the process's own,
which other work on the machine changes least.

Runs are added to ``benchmarks/results/off_policy.json``, where they replace runs with the same experiment and seed, and
``docs/images/off_policy.png`` shows all of them. With ``--output`` they are added to another file, and nothing is
drawn.
"""

import argparse
import importlib
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.control.contenders import Contender, facts_of, parse
from benchmarks.control.ppo_control import draw, runs_in, with_run, write

RESULTS, PICTURE = ROOT / "benchmarks/results/off_policy.json", ROOT / "docs/images/off_policy.png"
EVERY, EVALUATION_EPISODES = 1000, 10
EXPERIMENTS: dict[str, list[str]] = {
    "pendulum": ["experiment=pendulum"],
    "pendulum, TD3": ["experiment=pendulum", "algorithm=td3"],
    "pendulum, CrossQ": ["experiment=pendulum", "algorithm=crossq", "policy.critic_hidden_size=256"],
    "half_cheetah": ["experiment=half_cheetah", "algorithm=sac"],
    "hopper": [
        *("experiment=half_cheetah", "algorithm=sac", "env.id=Hopper-v5"),
        *("policy.state_dim=11", "policy.action_dim=3"),
    ],
    "cartpole_swingup": ["experiment=cartpole_swingup", "off_policy.temperature.learning_rate=1.0e-3"],  # SB3 has one
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
    """Return Stable-Baselines3's algorithm with the environment and hyper-parameters of a control job."""
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.env_util import make_vec_env

    settings, rollout, policy = config.off_policy, config.rollout, config.policy
    assert config.trainer.learning_rate == config.critic.learning_rate
    updates = settings.updates_per_transition * config.rows_per_iteration
    assert updates == int(updates)
    common = {
        "env": make_vec_env(config.env.id, rollout.num_workers * rollout.envs_per_worker, seed=config.seed),
        "learning_rate": config.trainer.learning_rate,
        "buffer_size": settings.replay_capacity,
        "learning_starts": settings.random_transitions,
        "batch_size": settings.batch_size,
        "gamma": config.algorithm.gamma,
        "train_freq": rollout.num_steps,
        "gradient_steps": int(updates),
        "seed": config.seed,
        "device": "cpu",
    }
    layers, kind = [policy.hidden_size] * policy.num_layers, "MlpPolicy"
    if config.env.adapter is not None and config.env.adapter.state is not None:  # a dict of arrays
        kind = "MultiInputPolicy"
    if settings.hindsight is not None:
        common |= hindsight_of(config)
    if settings.name == "sac":
        networks = {"net_arch": layers, "n_critics": policy.num_critics}
        return SAC(kind, tau=settings.target_rate, policy_kwargs=networks, **entropy_of(config), **common)
    if settings.name == "td3":
        networks = {"net_arch": layers, "n_critics": policy.num_critics}
        return TD3(kind, policy_kwargs=networks, **noise_of(config), **common)
    contrib = importlib.import_module("sb3_contrib")
    networks = {
        "net_arch": {"pi": layers, "qf": [policy.critic_hidden_size] * policy.num_layers},
        "n_critics": policy.num_critics,
        "batch_norm_momentum": policy.renorm_momentum,
        "renorm_warmup_steps": policy.renorm_warmup_steps,
        "optimizer_kwargs": {"betas": (settings.adam_beta1, 0.999)},
    }
    delay = settings.policy_delay
    return contrib.CrossQ(kind, policy_delay=delay, policy_kwargs=networks, **entropy_of(config), **common)


def hindsight_of(config: Any) -> dict[str, Any]:
    """Return the arguments for the replay buffer of hindsight experience replay."""
    from stable_baselines3 import HerReplayBuffer

    settings = config.off_policy.hindsight
    chosen = {"n_sampled_goal": settings.ratio, "goal_selection_strategy": settings.strategy}
    return {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": chosen}


def entropy_of(config: Any) -> dict[str, Any]:
    """Return the arguments for the temperature of soft actor-critic and CrossQ."""
    temperature = config.off_policy.temperature
    assert temperature.learning_rate == config.trainer.learning_rate
    target = temperature.target_entropy
    return {"ent_coef": f"auto_{temperature.initial}", "target_entropy": "auto" if target is None else target}


def noise_of(config: Any) -> dict[str, Any]:
    """Return the arguments for targets and exploration of TD3."""
    from stable_baselines3.common.noise import NormalActionNoise

    settings, policy = config.off_policy, config.policy
    deviation = np.full(policy.action_dim, policy.exploration_noise)
    return {
        "tau": settings.target_rate,
        "policy_delay": settings.policy_delay,
        "target_policy_noise": settings.target_noise,
        "target_noise_clip": settings.target_noise_clip,
        "action_noise": NormalActionNoise(np.zeros_like(deviation), deviation),
    }


CONTENDERS: dict[str, Contender] = {
    "embodyflow": ours,
    "stable-baselines3": stable_baselines3,
}


def measure(name: str, experiment: str, steps: int, seed: int, words: list[str]) -> dict[str, Any]:
    """Run one contender with one seed in a process of its own."""
    size = 50  # steps of an iteration, those of the recipe
    chosen = [*EXPERIMENTS[experiment], f"iterations={steps // size}", f"seed={seed}", *words]
    facts = facts_of("benchmarks.control.off_policy", name, chosen)
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
    """Return ratios of seconds (ours by its, medians over seeds), final returns, and points at which ranges overlap."""
    mine, peers = ([run for run in runs if run["contender"] == name] for name in CONTENDERS)
    steps = [step for step in mine[0]["curve"] if all(step in run["curve"] for run in runs)]
    ranges = [[[run["curve"][step] for run in side] for side in (mine, peers)] for step in steps]
    pairs = [(run, peer) for run in mine for peer in peers if run["seed"] == peer["seed"]]  # they took turns
    seconds = {
        kind: statistics.median(run[kind] / peer[kind] for run, peer in pairs)
        for kind in ("cpu_seconds", "wall_seconds")
    }
    return {
        **{f"{kind}_ratio": ratio for kind, ratio in seconds.items()},
        "final_returns": {
            name: [run["final_return"] for run in side] for name, side in zip(CONTENDERS, (mine, peers), strict=True)
        },
        "overlapping_points": sum(min(a) <= max(b) and min(b) <= max(a) for a, b in ranges),
        "num_points": len(steps),
    }


def save(runs: list[dict[str, Any]], results: Path) -> None:
    """Write the runs and, for experiments that both have run, their comparison."""
    write(runs, compare, results)
    if results == RESULTS:
        curves = [{"steps": [int(step) for step in run["curve"]], "returns": run["curve"].values()} for run in runs]
        draw([run | curve for run, curve in zip(runs, curves, strict=True)], PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", choices=list(EXPERIMENTS), default="pendulum")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments, words = parse(parser, CONTENDERS)
    runs = runs_in(arguments.output)
    keys = ("contender", "experiment", "seed")
    for seed in arguments.seeds:
        for name in CONTENDERS:
            run = measure(name, arguments.experiment, arguments.steps, seed, words)
            runs = with_run(runs, run, keys)
            print(json.dumps(run), flush=True)
            save(runs, arguments.output)


if __name__ == "__main__":
    main()
