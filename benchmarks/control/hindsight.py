"""Sparse rewards with hindsight experience replay: success by steps, beside Stable-Baselines3's HerReplayBuffer.

    python -m benchmarks.control.hindsight --experiment fetch_reach --seeds 0 1 2

Three contenders have the same environment, hyper-parameters, numbers of steps and updates, and one thread: soft
actor-critic of ours with hindsight and without, and Stable-Baselines3's SAC with its HerReplayBuffer. Each runs in a
process of its own without Ray and Prefect, ours by :mod:`benchmarks.control.in_process`. They take turns seed by seed.
After every 500 steps and their updates, 20 episodes with the policy's deterministic actions begin in initial states
that no contender trains in. An episode succeeds if the environment says so in its last step. CPU seconds are those of
collecting and learning, without evaluations.

Runs are added to ``benchmarks/results/hindsight.json``, where they replace runs with the same experiment and seed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.control.contenders import Contender, facts_of, parse
from benchmarks.control.off_policy import build
from benchmarks.control.ppo_control import runs_in, with_run

RESULTS = ROOT / "benchmarks/results/hindsight.json"
EVERY, EPISODES, FIRST_SEED = 500, 20, 10_000
EXPERIMENTS = ("fetch_reach", "panda_reach")

Act = Callable[[dict[str, np.ndarray]], np.ndarray]
"""Function from an observation of the goal environment to the policy's deterministic action."""


class Success:
    """Success of a policy in episodes of its own, and the CPU seconds that everything else takes.

    Args:
        config: Configuration of the run.
        act: The policy.
    """

    def __init__(self, config: Any, act: Act) -> None:
        self._env_config, self._act = config.env, act
        self.rates: dict[str, float] = {}
        self._began, self._evaluating = time.process_time(), 0.0

    def measure(self, steps: int) -> None:
        """Evaluate after so many steps of training."""
        import gymnasium as gym

        began, env = time.process_time(), self._env_config
        with closing(gym.make(env.id, max_episode_steps=env.max_steps, **env.kwargs)) as played:
            succeeded = [self._succeeds(played, FIRST_SEED + episode) for episode in range(EPISODES)]
        self.rates[str(steps)] = statistics.mean(succeeded)
        self._evaluating += time.process_time() - began

    def _succeeds(self, env: Any, seed: int) -> bool:
        observation, _ = env.reset(seed=seed)
        while True:
            observation, _, terminated, truncated, info = env.step(self._act(observation))
            if terminated or truncated:
                return bool(info["is_success"])

    @property
    def cpu_seconds(self) -> float:
        return time.process_time() - self._began - self._evaluating


def ours(words: list[str]) -> dict[str, Any]:
    """Train with our nodes."""
    from benchmarks.control.in_process import InProcessRun

    run = InProcessRun(words)
    run.warm_start()
    keys = run.config.env.adapter.state

    def act(observation: dict[str, np.ndarray]) -> np.ndarray:
        state = np.concatenate([observation[key] for key in keys], dtype=np.float32)
        actions: np.ndarray = run.rollout.policy.act({"state": state[None]}, None, 1.0).actions
        return actions[0, 0]  # the bounds of these environments are those of the policy

    size, updates, success = run.config.rows_per_iteration, 0, Success(run.config, act)
    success.measure(0)
    for iteration in range(1, run.config.iterations + 1):
        updates += int(run.iterate(iteration)["train/optimizer_steps"])
        if iteration * size % EVERY == 0:
            success.measure(iteration * size)
    return {"success": success.rates, "updates": updates, "cpu_seconds": success.cpu_seconds}


def without_hindsight(words: list[str]) -> dict[str, Any]:
    """Train with our nodes on the goals of the environment alone."""
    return ours([*words, "off_policy.hindsight=null"])


def stable_baselines3(words: list[str]) -> dict[str, Any]:
    """Train with Stable-Baselines3."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    from embodyflow.config.composition.compose import compose_config

    class Watch(BaseCallback):
        """Evaluates before a rollout, and so after the updates that follow the one before."""

        def __init__(self, success: Success) -> None:
            super().__init__()
            self.success = success

        def _on_rollout_start(self) -> None:
            if self.num_timesteps % EVERY == 0:
                self.success.measure(self.num_timesteps)

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    config: Any = compose_config(words)
    model, steps = build(config), config.iterations * config.rows_per_iteration
    success = Success(config, lambda observation: model.predict(observation, deterministic=True)[0])
    model.learn(steps, callback=Watch(success))
    success.measure(steps)
    return {"success": success.rates, "updates": model._n_updates, "cpu_seconds": success.cpu_seconds}


CONTENDERS: dict[str, Contender] = {
    "embodyflow": ours,
    "embodyflow without hindsight": without_hindsight,
    "stable-baselines3": stable_baselines3,
}


def measure(name: str, experiment: str, seed: int, words: list[str]) -> dict[str, Any]:
    """Run one contender with one seed in a process of its own."""
    chosen = [f"experiment={experiment}", f"seed={seed}", *words]
    facts = facts_of("benchmarks.control.hindsight", name, chosen)
    facts["cpu_seconds"] = round(facts["cpu_seconds"], 1)
    return {"contender": name, "experiment": experiment, "seed": seed, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="fetch_reach")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments, words = parse(parser, CONTENDERS)
    if words and arguments.output == RESULTS:
        parser.error(f"{' '.join(words)}: needs --output, since the results are those of the experiments as they are")
    runs = runs_in(arguments.output)
    for seed in arguments.seeds:
        for name in arguments.contenders:
            run = measure(name, arguments.experiment, seed, words)
            runs = with_run(runs, run, ("contender", "experiment", "seed"))
            runs.sort(key=lambda each: (each["experiment"], list(CONTENDERS).index(each["contender"]), each["seed"]))
            print(json.dumps(run), flush=True)
            arguments.output.write_text(json.dumps({"episodes": EPISODES, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
