"""LIBERO's steps by robosuite's code and by ours, and the effect of the cheaper controller on an expert.

Run ``LIBERO_ASSETS=… python benchmarks/robots/libero_steps.py`` (some minutes; needs the extra ``libero``). It measures
steps without images on one core. The peer is the ``step`` of LIBERO's environment without cameras, on the same model in
the same process. Contenders take turns on the same random actions, and rates are medians of steps per CPU second.
``--quick`` steps one task and leaves out the expert.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.commands import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "libero_steps.json"
TASKS = ("libero_object/0", "libero_spatial/0", "libero_goal/0", "libero_10/0")
ROUNDS, STEPS, GOALS = 5, 60, 5
EXPERT_TASKS = (0, 4, 6, 8, 9)


def make(task: str, **arguments: Any) -> Any:
    return gym.make("envs:embodyflow/LIBERO-v0", task=task, **arguments).unwrapped


def peer(env: Any) -> Callable[[np.ndarray], object]:
    """Return robosuite's step on separate simulator data, set to a recorded state."""
    own, stock = env._scene.new_data(), env._scene._env
    env._scene.use(own)
    stock.sim.reset()
    stock.sim.set_state_from_flattened(env._initial_states[0])
    stock.sim.forward()
    robot = stock.robots[0]
    robot.gripper.current_action = np.zeros(robot.gripper.dof)
    robot.controller.update(force=True)
    robot.controller.reset_goal()

    def step(action: np.ndarray) -> object:
        env._scene.use(own)
        return stock.step(action.astype(np.float64))

    return step


def rate(step: Callable[[np.ndarray], object], actions: np.ndarray) -> float:
    started = time.process_time()
    for action in actions:
        step(action)
    return len(actions) / (time.process_time() - started)


def speed(task: str) -> dict[str, list[float]]:
    """Return the steps per CPU second of each contender by round, without the first round, which compiles."""
    rates: dict[str, list[float]] = {"robosuite": [], "ours": [], "ours, period 5": []}
    exact, cheap = make(task), make(task, controller_period=5)
    for seed in range(ROUNDS):
        actions = np.random.default_rng(seed).uniform(-1, 1, (STEPS, 7)).astype(np.float32)
        exact.reset(options={"goal": 0})
        cheap.reset(options={"goal": 0})
        steps = {"robosuite": peer(exact), "ours": exact.step, "ours, period 5": cheap.step}
        for name, step in steps.items():
            rates[name].append(rate(step, actions))
    return {name: [round(value, 1) for value in values[1:]] for name, values in rates.items()}


def expert(number: int, period: int) -> dict[str, float]:
    env = make(f"libero_object/{number}", split="demo", rotation=False, controller_period=period)
    lengths, successes = [], 0
    for goal in range(GOALS):
        env.reset(options={"goal": goal})
        lengths.append(0)
        over = success = False
        while not over:
            _, _, success, truncated, _ = env.step(env.expert_action())
            over, lengths[-1] = success or truncated, lengths[-1] + 1
        successes += success
    return {"successes": successes, "episodes": GOALS, "mean_steps": round(statistics.mean(lengths), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one task, without the expert")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    by_round = {task: speed(task) for task in (TASKS[:1] if arguments.quick else TASKS)}
    results: dict[str, Any] = {
        "steps_per_cpu_second": {
            task: {name: statistics.median(values) for name, values in rates.items()}
            for task, rates in by_round.items()
        },
        "steps_per_cpu_second_per_round": by_round,
    }
    if not arguments.quick:
        results["expert"] = {
            f"period {period}": {f"libero_object/{number}": expert(number, period) for number in EXPERT_TASKS}
            for period in (1, 5)
        }
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
