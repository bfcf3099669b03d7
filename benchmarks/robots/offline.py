"""Implicit Q-learning on a data set alone, by our learner and by d3rlpy: returns and time.

    python -m benchmarks.robots.offline --seeds 0 1 2

Needs the package d3rlpy. The data are 10,000 steps of Pendulum-v1 by a scripted controller that swings the pendulum up;
each episode has a random share of its actions replaced by uniform ones. Both contenders have the same transitions,
sizes, settings and number of updates, the same greedy evaluation episodes, and one torch thread. They take turns seed
by seed. A control imitates all actions alike (``inverse_temperature=0``). Seconds are CPU seconds of the updates with
the drawing of their batches.

Writes ``benchmarks/results/offline.json``.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.config.composition.compose import compose_config
from embodyflow.policies.policy_registry import build_critic, build_policy
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.implicit_q import ImplicitQLearning
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape

RESULTS = ROOT / "benchmarks/results/offline.json"
NUM_EPISODES, EPISODE_STEPS, EVALUATION_EPISODES = 50, 200, 20
GAMMA, BATCH = 0.99, 256
TORQUE = 2.0
"""Largest action of Pendulum-v1, which the data scale to 1."""

Array = np.ndarray[Any, Any]
Act = Callable[[Array], Array]
"""Actions in [-1, 1], [n, 1], for states [n, 3]."""


def scripted(state: Array) -> Array:
    """Return the action, [1], that swings the pendulum up by its energy and holds it there, for a state [3]."""
    cosine, sine, speed = state
    angle = math.atan2(sine, cosine)
    if abs(angle) < 0.5:
        return np.array([np.clip(-(6 * angle + 1.5 * speed) / TORQUE, -1, 1)])
    energy = speed * speed / 6 + 5 * (cosine - 1)  # 0 at rest upright: m l² / 3 · ω² / 2 + m g l / 2 · (cos - 1)
    return np.array([np.clip(-2 * energy * math.copysign(1, speed), -1, 1)])


def collect(seed: int) -> tuple[dict[str, Array], list[float]]:
    """Return transitions by column, as a replay buffer takes them, and the returns of the episodes."""
    rng, env = derive_rng(seed, "offline"), gym.make("Pendulum-v1", max_episode_steps=EPISODE_STEPS)
    rows: list[tuple[Any, ...]] = []
    returns = []
    for episode in range(NUM_EPISODES):
        state, _ = env.reset(seed=10_000 * seed + episode)
        share, total = rng.random(), 0.0
        truncated = False
        while not truncated:
            action = rng.uniform(-1, 1, 1) if rng.random() < share else scripted(state)
            after, reward, _, truncated, _ = env.step(TORQUE * action)
            rows.append((state, action, reward, after, False, truncated))
            state, total = after, total + float(reward)
        returns.append(total)
    names = ("state", "action", "reward", "next_state", "terminated", "truncated")
    types = (np.float32, np.float32, np.float32, np.float32, np.bool_, np.bool_)
    columns = zip(names, zip(*rows, strict=True), types, strict=True)
    return {name: np.array(values, kind) for name, values, kind in columns}, returns


def evaluate(act: Act) -> float:
    """Return the mean return of greedy episodes, which are the same for all contenders."""
    envs = gym.make_vec("Pendulum-v1", EVALUATION_EPISODES, "sync", max_episode_steps=EPISODE_STEPS)
    states, _ = envs.reset(seed=list(range(1_000_000, 1_000_000 + EVALUATION_EPISODES)))
    total = np.zeros(EVALUATION_EPISODES)
    for _ in range(EPISODE_STEPS):
        states, rewards, *_ = envs.step((TORQUE * act(states)).astype(np.float32))
        total += rewards
    envs.close()
    return float(total.mean())


def ours(columns: dict[str, Array], seed: int, num_updates: int, *words: str) -> dict[str, float]:
    """Train our learner on the transitions."""
    with tempfile.TemporaryDirectory() as folder:
        buffer = ReplayBuffer.create(Path(folder), Shape(1, 3, 1), len(columns["reward"]))
        buffer.append(columns)
        buffer.commit()
        data = f"off_policy.demonstrations={folder}"
        config: Any = compose_config(["experiment=pendulum", "algorithm=iql", data, f"algorithm.gamma={GAMMA}", *words])
        torch.manual_seed(seed)
        policy: Any = build_policy(config.policy, "cpu")
        critics: Any = build_critic(config.policy, "cpu")
        learner = ImplicitQLearning(policy, critics, config)
        learner.restart()
        started = time.process_time()
        for update in range(num_updates):
            rng = derive_rng(seed, "update", update)
            learner.update(buffer.sample(rng, BATCH, 1, GAMMA), rng, update)
        seconds = time.process_time() - started
    return {"return": evaluate(lambda states: policy.act({"state": states}, None, 1.0).actions[:, 0]), "cpu": seconds}


def theirs(columns: dict[str, Array], seed: int, num_updates: int) -> dict[str, float]:
    """Train d3rlpy's learner on the transitions."""
    import d3rlpy

    d3rlpy.seed(seed)
    data = d3rlpy.dataset.MDPDataset(
        observations=columns["state"],
        actions=columns["action"],
        rewards=columns["reward"][:, None],
        terminals=columns["terminated"],
        timeouts=columns["truncated"],
        action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )
    peer = d3rlpy.algos.IQLConfig(gamma=GAMMA, batch_size=BATCH).create(device="cpu:0")
    peer.build_with_dataset(data)
    started = time.process_time()
    for _ in range(num_updates):
        peer.update(data.sample_transition_batch(BATCH))
    seconds = time.process_time() - started
    return {"return": evaluate(lambda states: peer.predict(states.astype(np.float32))), "cpu": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in arguments.seeds:
        columns, returns = collect(seed)
        contenders = {
            "embodyflow": ours(columns, seed, arguments.updates),
            "d3rlpy": theirs(columns, seed, arguments.updates),
            "imitation": ours(columns, seed, arguments.updates, "off_policy.inverse_temperature=0"),
        }
        row = {"seed": seed, "data_return": statistics.mean(returns), "best_data_return": max(returns), **contenders}
        print(row, flush=True)
        rows.append(row)
    ratio = statistics.median(each["embodyflow"]["cpu"] / each["d3rlpy"]["cpu"] for each in rows)
    print(f"CPU seconds, ours divided by d3rlpy's: {ratio:.2f}")
    write_report(arguments.output, ("torch", "gymnasium", "d3rlpy"), rows, updates=arguments.updates, cpu_ratio=ratio)


if __name__ == "__main__":
    main()
