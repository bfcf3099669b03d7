"""HalfCheetah in a batched simulator: alone, in our vector environment, and with our policy in the loop.

    python -m benchmarks.robots.batched_env
    python -m benchmarks.robots.batched_env --simulator brax --output benchmarks/results/batched_env_brax.json

The simulator is EnvPool (extra envpool) or Brax (extra brax), whose HalfCheetah has other physics. Every contender
steps 64 environments in this process, with one torch thread, and they take turns:

- The simulator alone, with actions that were drawn before.
- Our supervised vector environment on it (``env.vector``), with the same actions.
- Our rollout worker on it: it decides, draws actions, steps and records rows.
- Our rollout worker on single environments of Gymnasium, which two processes step.

EnvPool steps in threads of its own, by default one per core. Figures are environment steps per second, medians over the
rounds; shares are medians of the ratios by round. Writes ``benchmarks/results/batched_env.json``.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import torch

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.control import ControlConfig
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.seeding import derive_rng
from embodyflow.simulation.control_env import control_env
from embodyflow.simulation.supervision import Supervision

RESULTS = ROOT / "benchmarks/results/batched_env.json"
ALONE, VECTOR, WORKER, SINGLE = "simulator alone", "our vector environment", "our worker", "our worker, single ones"
EXPERIMENT = ("experiment=half_cheetah", "run_id=batched", "rollout.num_workers=1")

Play = Callable[[int], object]


def config_of(num_envs: int, num_steps: int, *words: str) -> ControlConfig:
    """Return the configuration of a worker."""
    sizes = (f"rollout.envs_per_worker={num_envs}", f"rollout.num_steps={num_steps}")
    config: RunConfig = compose_config([*EXPERIMENT, *sizes, *words])
    assert isinstance(config, ControlConfig)
    return config


def play_env_pool(stack: ExitStack, actions: np.ndarray) -> Play:
    """Return a function that steps EnvPool by the actions [T, N, A]."""
    import envpool

    pool = envpool.make_gymnasium("HalfCheetah-v5", num_envs=actions.shape[1], seed=0, max_episode_steps=1000)
    stack.callback(pool.close)
    pool.reset()

    def play(_: int) -> None:
        for each in actions:
            pool.step(each)

    return play


def play_brax(stack: ExitStack, actions: np.ndarray) -> Play:
    """Return a function that steps Brax by the actions [T, N, A], as one program of JAX for each step."""
    del stack
    import jax
    from brax import envs

    env = envs.get_environment("halfcheetah", backend="spring")
    step, keys = jax.jit(jax.vmap(env.step)), jax.random.split(jax.random.PRNGKey(0), actions.shape[1])
    state = jax.jit(jax.vmap(env.reset))(keys)

    def play(_: int) -> None:
        now = state
        for each in actions.astype(np.float32):
            now = step(now, each)
            np.asarray(now.obs), np.asarray(now.reward), np.asarray(now.done)

    return play


SIMULATORS: dict[str, tuple[str, Callable[[ExitStack, np.ndarray], Play]]] = {
    "envpool": ("env=env_pool", play_env_pool),
    "brax": ("env=brax", play_brax),
}
"""The word of our configuration for each simulator, and its bare loop."""


def play_vector(stack: ExitStack, config: ControlConfig, actions: np.ndarray) -> Play:
    """Return a function that steps our vector environment by the actions [T, N, A]."""
    num_envs = actions.shape[1]
    env = stack.enter_context(closing(control_env(config.env, "train", num_envs, 0, Supervision())))
    env.reset(seeds=[0] * num_envs)

    def play(_: int) -> None:
        for each in actions:
            step = env.step(each[:, None])
            if over := np.flatnonzero(step.terminated | step.truncated).tolist():
                env.reset(over)

    return play


def play_worker(config: ControlConfig) -> Play:
    """Return a function that collects an iteration's rows with a policy of random weights."""
    worker = ControlRollout(config, 0, 1)
    return lambda number: worker.collect(number, (0, number, "rollout"))


def measure(plays: Mapping[str, Play], num_rounds: int, num_steps: int) -> dict[str, list[float]]:
    """Play in turns; return the environment steps per second of each round after the first."""
    rates: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(1, num_rounds + 2):
        for name, play in plays.items():
            started = time.perf_counter()
            play(number)
            rates[name].append(num_steps / (time.perf_counter() - started))
    return {name: each[1:] for name, each in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", choices=list(SIMULATORS), default="envpool")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-steps", type=int, default=200, help="steps of each environment and round")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    num_envs, num_steps = arguments.num_envs, arguments.num_steps
    torch.set_num_threads(1)
    actions = derive_rng(0, "actions").uniform(-1, 1, (num_steps, num_envs, 6))
    word, play_alone = SIMULATORS[arguments.simulator]
    batched = config_of(num_envs, num_steps, word)
    single = config_of(num_envs, num_steps, "rollout.env_processes=2")
    with ExitStack() as stack:
        plays = {
            ALONE: play_alone(stack, actions),
            VECTOR: play_vector(stack, batched, actions),
            WORKER: play_worker(batched),
            SINGLE: play_worker(single),
        }
        rates = measure(plays, arguments.rounds, num_envs * num_steps)
    row = compare(rates)
    write_report(arguments.output, (arguments.simulator, "gymnasium", "mujoco", "torch"), [row], num_envs=num_envs)


def compare(rates: Mapping[str, list[float]]) -> dict[str, object]:
    """Print the rates and shares, and return them for the results file."""
    for name, each in rates.items():
        print(f"  {name:28}{statistics.median(each):10.0f} steps/s")

    def share(of: str, among: str) -> float:
        return statistics.median(mine / theirs for mine, theirs in zip(rates[of], rates[among], strict=True))

    shares = {
        "share_of_vector_environment": share(VECTOR, ALONE),
        "share_with_policy": share(WORKER, ALONE),
        "ratio_to_single_environments": share(WORKER, SINGLE),
    }
    print("  " + ", ".join(f"{name} {value:.2f}" for name, value in shares.items()))
    return {"environment": "HalfCheetah-v5", "steps_per_second": rates, **shares}


if __name__ == "__main__":
    main()
