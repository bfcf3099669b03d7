"""LIBERO with images: our vector environment against LIBERO's own SubprocVectorEnv, with a policy in the loop.

Run ``LIBERO_ASSETS=… python -m benchmarks.robots.libero_images`` (some minutes; needs the extra ``libero`` and GL).
Both step one environment of LIBERO-Object per core, each in its own process, and show a small policy the agent and the
wrist camera at 128 × 128 pixels. The peer is what LIBERO ships for training and evaluation: robosuite's step, which
renders both cameras after every action. Ours renders only what the policy sees, the last step of a chunk. Contenders
live side by side and take turns. Figures are medians over the rounds, without the first, by wall seconds and by CPU
seconds of all processes. Results go to ``benchmarks/results/libero_images.json``.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil

from benchmarks.commands import ROOT
from benchmarks.control.ppo_control import cpu_seconds
from embodyflow.simulation.vector.env import VectorEnv

RESULTS = ROOT / "benchmarks" / "results" / "libero_images.json"
NUM_ENVS = os.cpu_count() or 1
TASK, SIZE, STEPS = "libero_object/0", 128, 20  # task, pixels per side, steps per round
CHUNK_SIZES = (5, 1)
TARGET = 2.0

Play = Callable[[int], None]
"""A function that lets the policy act a number of times in every environment."""


@dataclass(frozen=True)
class Files:
    """Files of the task, which our adapter finds.

    LIBERO's own processes only get the paths, because importing the adapter there would disable robosuite's renderer.

    Attributes:
        assets: Folder of the assets.
        bddl: Path of the task's BDDL file.
        initial_state: Simulator state that episodes start from.
    """

    assets: str
    bddl: str
    initial_state: np.ndarray


def decide(images: list[np.ndarray], chunk_size: int) -> np.ndarray:
    """Return the actions of a fixed linear policy for each environment's two images, float32 ``[n, C, 7]``."""
    seen = np.stack([image[::8, ::8].reshape(-1) / 255.0 - 0.5 for image in images])
    return (
        np.tanh(seen @ policy_weights(seen.shape[1], chunk_size * 7))
        .astype(np.float32)
        .reshape(len(images), chunk_size, 7)
    )


@cache
def policy_weights(num_inputs: int, num_outputs: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num_inputs, num_outputs)) / np.sqrt(num_inputs)


def ours(chunk_size: int, files: Files) -> Play:
    words = {"task": TASK, "observe": "proprio", "cameras": ("image", "wrist_image"), "image_size": SIZE}
    make = partial(gym.make, "envs:embodyflow/LIBERO-v0", disable_env_checker=True, **words)
    env = VectorEnv([make] * NUM_ENVS, num_workers=NUM_ENVS, chunk_size=chunk_size)
    observation = env.reset(seeds=range(NUM_ENVS), options=[{"goal": 0}] * NUM_ENVS)

    def play(num_chunks: int) -> None:
        nonlocal observation
        for _ in range(num_chunks):
            both = np.concatenate([observation["image"], observation["wrist_image"]], axis=1)
            observation = env.step(decide(list(both), chunk_size)).observation

    return play


def libero_own(chunk_size: int, files: Files) -> Play:
    multiprocessing.set_start_method("fork", force=True)  # the spawned process would spawn its children, too
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.yaml").write_text("{}\n")  # without it LIBERO asks for its data sets on standard input
        os.environ["LIBERO_CONFIG_PATH"] = folder
        import libero.libero

        libero.libero._assets_path_cache = files.assets
        from libero.libero.envs import OffScreenRenderEnv, SubprocVectorEnv

    make = partial(OffScreenRenderEnv, bddl_file_name=files.bddl, camera_heights=SIZE, camera_widths=SIZE)
    env = SubprocVectorEnv([make] * NUM_ENVS)
    env.seed(0)
    env.reset()
    observation = env.set_init_state(np.stack([files.initial_state] * NUM_ENVS))

    def play(num_chunks: int) -> None:
        nonlocal observation
        for _ in range(num_chunks):
            both = [np.concatenate([o["agentview_image"], o["robot0_eye_in_hand_image"]]) for o in observation]
            for actions in decide(both, chunk_size).swapaxes(0, 1):
                observation, *_ = env.step(actions)

    return play


CONTENDERS = {"LIBERO SubprocVectorEnv": libero_own, "embodyflow": ours}


def serve(connection: Connection, contender: str, chunk_size: int, files: Files) -> None:
    """Run a contender: play as many chunks as requested and answer with wall and CPU seconds."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    play = CONTENDERS[contender](chunk_size, files)
    connection.send(None)
    while num_chunks := connection.recv():
        wall, cpu = time.perf_counter(), cpu_seconds(psutil.Process())
        play(num_chunks)
        connection.send((time.perf_counter() - wall, cpu_seconds(psutil.Process()) - cpu))
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)  # robosuite's renderer prints errors during a normal exit


def compare(chunk_size: int, rounds: int, files: Files) -> dict[str, Any]:
    """Run the contenders in turns; return the steps per second of each."""
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    for name in CONTENDERS:
        connections[name], theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, name, chunk_size, files)).start()
        theirs.close()  # otherwise recv would not notice that the process has ended
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for connection in connections.values():
        connection.recv()
    for _ in range(rounds + 1):
        for name, connection in connections.items():
            connection.send(STEPS // chunk_size)
            seconds[name].append(connection.recv())
    for connection in connections.values():
        connection.send(0)
    rates, by_round = {}, {}
    for name, each in seconds.items():
        wall, cpu = (statistics.median(column) for column in zip(*each[1:], strict=True))
        rates[name] = {"steps_per_wall_second": NUM_ENVS * STEPS / wall, "steps_per_cpu_second": NUM_ENVS * STEPS / cpu}
        by_round[name] = [round(NUM_ENVS * STEPS / wall, 2) for wall, _ in each[1:]]
    peer, own = rates.values()
    ratios = {f"{key}_ratio": own[key] / peer[key] for key in own}
    print(f"chunks of {chunk_size}: " + ", ".join(f"{key} {value:.2f}" for key, value in ratios.items()))
    return {"chunk_size": chunk_size, **ratios, "rates": rates, "steps_per_wall_second_per_round": by_round}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    from embodyflow.environments.libero import suites

    files = Files(str(suites.assets()), str(suites.task_file(TASK)), suites.initial_states(TASK)[0])
    comparisons = [compare(chunk_size, arguments.rounds, files) for chunk_size in CHUNK_SIZES]
    facts = {"cpus": NUM_ENVS, "task": TASK, "pixels": SIZE, "steps_per_round": STEPS, "target": TARGET}
    arguments.output.write_text(json.dumps({**facts, "comparisons": comparisons}, indent=1) + "\n")


if __name__ == "__main__":
    main()
