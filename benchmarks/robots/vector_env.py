"""Vector environments compared: ours, gymnasium's SyncVectorEnv and AsyncVectorEnv, SB3's SubprocVecEnv.

Run ``python -m benchmarks.robots.vector_env`` or ``python benchmarks/robots/vector_env.py`` (about three minutes on an
idle machine with two cores). There are sixteen environments with a small MLP policy in the loop. The policy acts once
per chunk, and its actions are then executed one by one; chunks of 1 are ordinary control. All contenders step the same
environments, built by the same functions without Gymnasium's checker. They live side by side and take turns, so other
load on the machine affects all of them. Figures are medians over the rounds, by wall seconds and by CPU seconds of this
process and its children.

Before any timing, each contender executes the same actions from the same seeds; observations and rewards must be
bit-identical.

Some rows do not count for the ratio. "bare physics" is only MuJoCo's ``mj_step`` in one thread per core, without
policy, observations or rewards. "bare mujoco.rollout" is the same in one call per chunk, for tasks that are nothing but
physics; the script also reports the fraction of its speed that ours reaches. "our reach-v3" is ours with the faster,
bit-identical class in ``embodyflow/environments/metaworld.py``; it has separate processes because it patches
Meta-World's modules.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium as gym
import metaworld
import mujoco
import numpy as np
import psutil
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from metaworld.env_dict import ENV_CLS_MAP
from mujoco.rollout import Rollout
from stable_baselines3.common.vec_env import SubprocVecEnv

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.environments.metaworld_step import FastStep
from embodyflow.simulation.vector.env import VectorEnv

NUM_ENVS = 16
NUM_WORKERS = min(os.cpu_count() or 1, NUM_ENVS)
TARGETS = {5: 2.0, 1: 1.2}  # minimum speed-up over the best peer in wall seconds, by chunk size
BOUND, ROLLOUT, OWN_CLASS = "bare physics", "bare mujoco.rollout", "our reach-v3, processes, halves"
ASYNC = "gymnasium AsyncVectorEnv"
# Targets for plain MuJoCo tasks: fraction of bare mujoco.rollout's speed, and speed-up over AsyncVectorEnv.
LEAST_SHARE, LEAST_OF_ASYNC = 0.7, 3.0
RESULTS = ROOT / "benchmarks" / "results" / "vector_env.json"

Array = Any  # NumPy's
EnvFns = list[Callable[..., gym.Env[Any, Any]]]
Policy = Callable[[Array], Array]


def half_cheetah() -> gym.Env[Any, Any]:
    return gym.make("HalfCheetah-v5", disable_env_checker=True)


def reach(task: Any, fast: bool = False) -> gym.Env[Any, Any]:
    base = ENV_CLS_MAP["reach-v3"]
    env = type(base.__name__, (FastStep, base), {})() if fast else base()
    env.set_task(task)
    if fast:
        env.prepare()
    return gym.wrappers.TimeLimit(env, env.max_path_length)


def reach_with_goals() -> EnvFns:
    return [partial(reach, task) for task in metaworld.MT1("reach-v3", seed=0).train_tasks[:NUM_ENVS]]


ENVIRONMENTS: dict[str, Callable[[], EnvFns]] = {
    "HalfCheetah-v5": lambda: [half_cheetah] * NUM_ENVS,
    "Meta-World reach-v3": reach_with_goals,
}


class Contender(Protocol):
    """A vector environment of N environments with actions [A]."""

    def reset(self) -> Array:
        """Reset every environment to its own fixed seed; return the observations [N, S]."""

    def execute(self, actions: Array) -> tuple[Array, Array]:
        """Execute actions float32 [N, C, A]; return the last observations [N, S] and the rewards [N, C]."""

    def play(self, observation: Array, policy: Policy, num_chunks: int) -> None:
        """Let the policy act ``num_chunks`` times in every environment, starting from ``observation``."""

    def close(self) -> None: ...


class Embodyflow:
    """Our vector environment with one call per chunk. With two halves, one steps while the policy acts in the other."""

    def __init__(self, env_fns: EnvFns, chunk_size: int, num_workers: int, halves: int = 1, **options: Any) -> None:
        self._env = VectorEnv(env_fns, num_workers=num_workers, chunk_size=chunk_size, **options)
        self._halves = np.array_split(np.arange(NUM_ENVS), halves)
        self.close = self._env.close

    def reset(self) -> Array:
        return self._env.reset(seeds=range(NUM_ENVS))["state"]

    def execute(self, actions: Array) -> tuple[Array, Array]:
        step = self._env.step(actions)
        return step.observation["state"], step.rewards

    def play(self, observation: Array, policy: Policy, num_chunks: int) -> None:
        for half in self._halves:
            self._env.step_async(policy(observation[half]), half)
        for _ in range(num_chunks - 1):
            for half in self._halves:
                self._env.step_async(policy(self._env.step_wait().observation["state"]), half)
        for _ in self._halves:
            self._env.step_wait()


class Peer:
    """A vector environment with one call per step."""

    def __init__(self, env: Any, reset: Callable[[Any], Array]) -> None:
        self._env, self._reset, self.close = env, reset, env.close

    @classmethod
    def gymnasium(cls, vector_class: Callable[..., Any], env_fns: EnvFns) -> "Peer":
        """Return one of Gymnasium's with its cheapest settings: no copy of the observations, no autoreset."""
        env = vector_class(env_fns, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        return cls(env, lambda env: env.reset(seed=list(range(NUM_ENVS)))[0])

    @classmethod
    def stable_baselines3(cls, env_fns: EnvFns) -> "Peer":
        def reset(env: SubprocVecEnv) -> Array:
            env.seed(0)  # environment i gets 0 + i
            return env.reset()

        return cls(SubprocVecEnv(env_fns, start_method="fork"), reset)

    def reset(self) -> Array:
        return self._reset(self._env)

    def execute(self, actions: Array) -> tuple[Array, Array]:
        rewards = []
        for action in actions.swapaxes(0, 1):
            observation, reward, *_ = self._env.step(action)
            rewards.append(np.array(reward))
        return observation, np.stack(rewards, axis=1)

    def play(self, observation: Array, policy: Policy, num_chunks: int) -> None:
        for _ in range(num_chunks):
            for action in policy(observation).swapaxes(0, 1):
                observation, *_ = self._env.step(action)


class BarePhysics:
    """An upper bound on speed: only each environment's ``mj_step``, in one thread per core."""

    def __init__(self, env_fns: EnvFns, chunk_size: int) -> None:
        self._envs, self._chunk_size = [env_fn() for env_fn in env_fns], chunk_size

    def reset(self) -> None:
        for seed, env in enumerate(self._envs):
            env.reset(seed=seed)

    def play(self, observation: None, policy: Policy | None, num_chunks: int) -> None:
        del observation, policy
        num_steps = num_chunks * self._chunk_size
        threads = [threading.Thread(target=self._step, args=[k, num_steps]) for k in range(NUM_WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _step(self, thread: int, num_steps: int) -> None:
        share: list[Any] = [env.unwrapped for env in self._envs[thread::NUM_WORKERS]]
        controls = np.random.default_rng(thread).uniform(-1, 1, (num_steps, share[0].model.nu))
        for control in controls:
            for env in share:
                env.data.ctrl[:] = control
                mujoco.mj_step(env.model, env.data, nstep=env.frame_skip)

    def close(self) -> None:
        for env in self._envs:
            env.close()


class BareRollout:
    """An upper bound on speed: only MuJoCo's own rollout of all environments, one call per chunk, a thread per core."""

    def __init__(self, env_fns: EnvFns, chunk_size: int) -> None:
        self._envs: list[Any] = [env_fn().unwrapped for env_fn in env_fns]
        self._model, self._num_substeps = self._envs[0].model, chunk_size * self._envs[0].frame_skip
        self._datas = [mujoco.MjData(self._model) for _ in range(NUM_WORKERS)]
        self._rollout = Rollout(nthread=NUM_WORKERS)

    def reset(self) -> None:
        spec = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        self._states = np.empty((len(self._envs), mujoco.mj_stateSize(self._model, spec)))
        for seed, (env, state) in enumerate(zip(self._envs, self._states, strict=True)):
            env.reset(seed=seed)
            mujoco.mj_getState(env.model, env.data, state, spec)

    def play(self, observation: None, policy: Policy, num_chunks: int) -> None:
        del observation, policy
        shape = (len(self._envs), self._num_substeps, self._model.nu)
        controls = np.random.default_rng(0).uniform(-1, 1, shape)
        models, states = [self._model] * len(self._envs), np.empty((*shape[:2], self._states.shape[1]))
        for _ in range(num_chunks):
            self._rollout.rollout(models, self._datas, self._states, controls, state=states)
            self._states = states[:, -1].copy()

    def close(self) -> None:
        self._rollout.close()
        for env in self._envs:
            env.close()


def build_bounds(environment: str, env_fns: EnvFns, chunk_size: int) -> Iterator[tuple[str, Any]]:
    """Yield the upper bounds, which compute only the physics of the environments."""
    yield BOUND, BarePhysics(env_fns, chunk_size)
    if environment == "HalfCheetah-v5":
        yield ROLLOUT, BareRollout(env_fns, chunk_size)


def build_peers(env_fns: EnvFns) -> Iterator[tuple[str, Contender]]:
    yield "gymnasium SyncVectorEnv", Peer.gymnasium(SyncVectorEnv, env_fns)
    yield ASYNC, Peer.gymnasium(AsyncVectorEnv, env_fns)
    yield "SB3 SubprocVecEnv", Peer.stable_baselines3(env_fns)


def build_ours(env_fns: EnvFns, chunk_size: int) -> Iterator[tuple[str, Contender]]:
    yield "embodyflow, this process", Embodyflow(env_fns, chunk_size, num_workers=0)
    yield "embodyflow, this and others", Embodyflow(env_fns, chunk_size, NUM_WORKERS, caller_steps=True)
    yield f"embodyflow, {NUM_WORKERS} processes", Embodyflow(env_fns, chunk_size, NUM_WORKERS)
    yield f"embodyflow, {NUM_WORKERS} processes, halves", Embodyflow(env_fns, chunk_size, NUM_WORKERS, halves=2)


def build_beside(environment: str, env_fns: EnvFns, chunk_size: int) -> Iterator[tuple[str, Contender]]:
    """Yield contenders that step a different environment class."""
    if environment == "Meta-World reach-v3":
        fast: EnvFns = [partial(env_fn, fast=True) for env_fn in env_fns]
        yield OWN_CLASS, Embodyflow(fast, chunk_size, NUM_WORKERS, halves=2)


def build_policy(state_dim: int, chunk_size: int, action_dim: int) -> Policy:
    torch.manual_seed(0)
    widths = [state_dim, 256, 256, chunk_size * action_dim]
    layers = [layer for a, b in pairwise(widths) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())]
    network = torch.nn.Sequential(*layers)

    @torch.inference_mode()
    def policy(observation: Array) -> Array:
        actions = network(torch.as_tensor(observation, dtype=torch.float32))
        return actions.view(len(observation), chunk_size, action_dim).numpy()

    return policy


def check_agreement(contenders: dict[str, Contender], chunk_size: int, action_dim: int, num_chunks: int = 4) -> None:
    """Check that all contenders have bit-identical observations and rewards for the same seeds and actions.

    Raises:
        RuntimeError: Two contenders differ.
    """
    shape = (num_chunks, NUM_ENVS, chunk_size, action_dim)
    chunks = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    reference = None
    for name, contender in contenders.items():
        trajectory = [np.array(contender.reset())]
        for chunk in chunks:
            observation, rewards = contender.execute(chunk)
            trajectory += [np.array(observation), rewards.astype(np.float32)]
        reference = reference or trajectory
        if not all(np.array_equal(a, b) for a, b in zip(reference, trajectory, strict=True)):
            raise RuntimeError(f"{name}: the trajectory differs from that of {next(iter(contenders))}")


def cpu_seconds() -> float:
    """Return the CPU seconds so far of this process and its children, none of which ends during a measurement."""
    process = psutil.Process()
    times = [one.cpu_times() for one in [process, *process.children(recursive=True)]]
    return float(sum(time.user + time.system for time in times))


def measure(contenders: dict[str, Contender], policy: Policy, num_rounds: int, num_chunks: int) -> dict[str, Any]:
    """Run the contenders in turns; return median wall and CPU seconds per round by name."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(num_rounds):
        for name, contender in contenders.items():
            observation = contender.reset()
            cpu, wall = cpu_seconds(), time.perf_counter()
            contender.play(observation, policy, num_chunks)
            samples[name].append((time.perf_counter() - wall, cpu_seconds() - cpu))
    return {
        name: {
            "wall_seconds": statistics.median(wall for wall, _ in rounds),
            "cpu_seconds": statistics.median(cpu for _, cpu in rounds),
            "wall_seconds_per_round": [round(wall, 4) for wall, _ in rounds],
        }
        for name, rounds in samples.items()
    }


def report(environment: str, chunk_size: int, num_steps: int, rows: dict[str, Any]) -> dict[str, Any]:
    """Print one comparison and return it for the results file."""
    ours = {name: row for name, row in rows.items() if name.startswith("embodyflow")}
    peers = {name: row for name, row in rows.items() if name not in ours and name not in (BOUND, ROLLOUT, OWN_CLASS)}
    best_of_ours, best_peer = (min(group, key=lambda name: group[name]["wall_seconds"]) for group in (ours, peers))
    ratios = {key: rows[best_peer][key] / rows[best_of_ours][key] for key in ("wall_seconds", "cpu_seconds")}
    print(f"\n{environment}, {NUM_ENVS} environments, chunks of {chunk_size}")
    print(f"  {'':34}{'wall s':>8}{'CPU s':>8}{'steps/s':>9}")
    for name, row in rows.items():
        row["steps_per_second"] = NUM_ENVS * num_steps / row["wall_seconds"]
        print(f"  {name:34}{row['wall_seconds']:8.3f}{row['cpu_seconds']:8.3f}{row['steps_per_second']:9.0f}")
    print(
        f"  {best_of_ours} against {best_peer}: {ratios['wall_seconds']:.2f}x wall "
        f"(target {TARGETS[chunk_size]}x), {ratios['cpu_seconds']:.2f}x CPU"
    )
    beside = {
        name: rows[best_peer]["wall_seconds"] / rows[name]["wall_seconds"]
        for name in (OWN_CLASS, BOUND, ROLLOUT)
        if name in rows
    }
    for name, ratio in beside.items():
        print(f"  {name} against {best_peer}: {ratio:.2f}x wall")
    fastest = rows[best_of_ours]["wall_seconds"]
    goals = {"wall_ratio_to_async": (rows[ASYNC]["wall_seconds"] / fastest, LEAST_OF_ASYNC)}
    if ROLLOUT in rows:
        goals["share_of_bare_rollout"] = (rows[ROLLOUT]["wall_seconds"] / fastest, LEAST_SHARE)
        for name, (value, least) in goals.items():
            print(f"  {name}: {value:.2f} (target {least})")
    return {
        "environment": environment,
        "chunk_size": chunk_size,
        **{name: value for name, (value, _) in goals.items()},
        "contenders": rows,
        "wall_ratio_beside": beside,
        "ours": best_of_ours,
        "best_peer": best_peer,
        "wall_ratio": ratios["wall_seconds"],
        "cpu_ratio": ratios["cpu_seconds"],
        "target": TARGETS[chunk_size],
        "reached": ratios["wall_seconds"] >= TARGETS[chunk_size],
    }


def compare(environment: str, num_rounds: int, num_steps: int) -> Iterator[dict[str, Any]]:
    """Build the peers once and ours for each chunk size; check agreement, measure, and yield the reports."""
    env_fns = ENVIRONMENTS[environment]()
    with closing(env_fns[0]()) as probe:
        (state_dim,), (action_dim,) = probe.observation_space.shape or (), probe.action_space.shape or ()
    with ExitStack() as peers_stack:
        peers = {name: peers_stack.enter_context(closing(peer)) for name, peer in build_peers(env_fns)}
        for chunk_size in TARGETS:
            with ExitStack() as stack:
                ours = {name: stack.enter_context(closing(one)) for name, one in build_ours(env_fns, chunk_size)}
                bounds = build_bounds(environment, env_fns, chunk_size)
                alone = {name: stack.enter_context(closing(one)) for name, one in bounds}
                beside = build_beside(environment, env_fns, chunk_size)
                ours |= {name: stack.enter_context(closing(one)) for name, one in beside}
                contenders: dict[str, Any] = {**peers, **ours}
                check_agreement(contenders, chunk_size, action_dim)
                policy = build_policy(state_dim, chunk_size, action_dim)
                rows = measure(contenders | alone, policy, num_rounds, num_steps // chunk_size)
            yield report(environment, chunk_size, num_steps, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200, help="steps per environment and round, at most 500")
    parser.add_argument(
        "--environment",
        choices=ENVIRONMENTS,
        action="append",
        help="may be repeated; default: all; results of other environments stay",
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    chosen = arguments.environment or list(ENVIRONMENTS)
    others = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    comparisons = [comparison for comparison in others if comparison["environment"] not in chosen]
    for environment in chosen:
        settings = {"rounds": arguments.rounds, "steps_per_round": arguments.steps}
        comparisons += [settings | row for row in compare(environment, arguments.rounds, arguments.steps)]
    packages = ("gymnasium", "stable-baselines3", "metaworld", "mujoco", "numpy", "torch")
    write_report(arguments.output, packages, comparisons, num_envs=NUM_ENVS)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
