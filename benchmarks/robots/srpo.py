"""Does SRPO reach GRPO's final success sooner if most groups fail at first?

    python -m benchmarks.robots.srpo --seeds 1 2 3 4 5 --folder /tmp/srpo
    python -m benchmarks.robots.srpo --seeds 0 1 2 3 4 5 --folder /tmp/srpo_reach --job reach

A run is one process (``benchmarks/control/in_process.py``) with the results of ``python -m flows.srpo``; two runs share
two cores. Finished runs in the folder are reused. Once all runs are finished, the script writes
``benchmarks/results/srpo.json`` and ``docs/images/srpo.png``, or with ``--job reach`` the same as ``srpo_reach``.

GRPO's final success is its mean over the last ``WINDOW`` iterations and all seeds. An arm reaches it at the first
iteration at which its own mean over ``WINDOW`` iterations and all seeds is as high.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """A job for both flows.

    Attributes:
        title: Title of the picture.
        words: Overrides for both flows.
        progress: Overrides of SRPO's progress reward, which GRPO does not have.
        name: Name of the files with figures and picture.
    """

    title: str
    words: tuple[str, ...]
    progress: tuple[str, ...]
    name: str


FETCH = Job(
    "FetchReach from scratch, to 2.5 cm",
    (
        "env.id=gymnasium_robotics:FetchReach-v4",
        "env.tasks=[reach]",
        "env.kwargs={reward_type:dense}",  # minus the distance in metres, from which the adapter derives success
        "env.adapter={success_reward:-0.025,wrappers:[benchmarks.robots.srpo:see_way_to_goal]}",
        "env.max_steps=25",
        "policy.state_dim=9",
        "policy.action_dim=4",
        "policy.chunk_size=1",  # 5 cm a step
        "warm_start=null",
        "iterations=24",
        "rollout.num_groups=16",
        "trainer.learning_rate=1e-3",
        "trainer.epochs=4",
        "trainer.num_minibatches=2",
    ),
    # The final vector from gripper to goal, by which episodes with different goals can be compared.
    ("progress.embedding.entries=[0,1,2]", "progress.embedding.start=1.0", "progress.embedding.num_points=1"),
    "srpo",
)
"""An untrained policy succeeds in about one of fifty episodes by chance."""

REACH = Job(
    "reach-v3 from one demonstration",
    (
        "experiment=embodied",
        "env.tasks=[reach-v3]",
        "warm_start.num_demos=1",
        "iterations=24",
        "rollout.num_groups=16",
    ),
    (),
    "srpo_reach",
)
JOBS = {"fetch": FETCH, "reach": REACH}
ARMS = {"grpo": "tab:gray", "srpo": "tab:blue"}
"""Flows and their colours in the picture."""
WINDOW = 3


def see_way_to_goal(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Wrap a Fetch task: the state [9] is the vector from gripper to goal in decimetres, the goal, and the gripper."""

    def state(seen: dict[str, np.ndarray]) -> np.ndarray:
        goal, gripper = seen["desired_goal"], seen["achieved_goal"]
        return np.concatenate([10 * (goal - gripper), goal, gripper])

    return gym.wrappers.TransformObservation(env, state, gym.spaces.Box(-np.inf, np.inf, (9,), np.float64))


def train(job: Job, arm: str, seed: int, words: list[str]) -> dict:
    """Train once; return the success of each iteration's episodes and further figures."""
    from benchmarks.control.in_process import InProcessRun

    run = InProcessRun(
        [f"algorithm={arm}", f"seed={seed}", *job.words, *(job.progress if arm == "srpo" else ()), *words]
    )
    run.warm_start()
    facts: dict = {"arm": arm, "seed": seed, "curve": [], "mixed": [], "all_failed": [], "trained_rows": []}
    started = time.perf_counter()
    for iteration in range(1, run.config.iterations + 1):
        metrics = run.iterate(iteration)
        facts["curve"].append(metrics["rollout/success_rate"])
        facts["mixed"].append(metrics["groups/mixed_fraction"])
        facts["all_failed"].append(metrics["groups/all_failure_fraction"])
        facts["trained_rows"].append(metrics["groups/num_kept_rows"])
        print(f"{arm}-{seed} {iteration} {facts['curve'][-1]:.3f}", flush=True)
    facts["seconds"] = time.perf_counter() - started
    return facts


def smoothed(runs: list[dict]) -> list[float]:
    """Return the mean success over seeds and the last ``WINDOW`` iterations, for each iteration from ``WINDOW`` on."""
    mean = [statistics.mean(values) for values in zip(*(each["curve"] for each in runs), strict=True)]
    return [statistics.mean(mean[end - WINDOW : end]) for end in range(WINDOW, len(mean) + 1)]


def reached(runs: list[dict], level: float) -> int | None:
    """Return the first iteration at which the smoothed curve reaches the level."""
    return next((end for end, rate in enumerate(smoothed(runs), start=WINDOW) if rate >= level), None)


def draw(job: Job, arms: dict[str, list[dict]], level: float) -> None:
    figure = Figure(figsize=(7, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for arm, runs in arms.items():
        for run in runs:
            axes.plot(range(1, len(run["curve"]) + 1), run["curve"], color=ARMS[arm], lw=0.6, alpha=0.35)
        values = smoothed(runs)
        axes.plot(range(WINDOW, WINDOW + len(values)), values, color=ARMS[arm], lw=2, label=arm)
    axes.axhline(level, color="tab:gray", lw=0.8, ls=":")
    axes.set(xlabel="iteration", ylabel="success of its episodes", ylim=(0, 1.03))
    axes.set_title(f"{job.title}: seeds, and their mean over three iterations", fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(ROOT / f"docs/images/{job.name}.png")


def run_missing(job: str, folder: Path, seeds: list[int], words: list[str]) -> None:
    """Run all runs that the folder lacks, two at a time, alternating between the arms."""
    wanted = [(arm, seed) for seed in seeds for arm in ARMS if not (folder / f"{arm}-{seed}.json").exists()]
    running: list[subprocess.Popen] = []
    try:
        for arm, seed in wanted:
            while len([each for each in running if each.poll() is None]) == 2:
                time.sleep(0.5)
            command = [sys.executable, "-m", "benchmarks.robots.srpo", "--job", job, "--one", arm, str(seed)]
            running.append(subprocess.Popen([*command, "--folder", str(folder), "--words", *words], cwd=ROOT))
        codes = [each.wait() for each in running]
    finally:
        for each in running:
            each.kill()
    if any(codes):
        sys.exit("a run failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="seed 0 was used to choose the settings"
    )
    parser.add_argument("--job", choices=JOBS, default="fetch")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help="do only this run, in this process")
    arguments = parser.parse_args()
    job = JOBS[arguments.job]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        arm, seed = arguments.one
        facts = train(job, arm, int(seed), arguments.words)
        (arguments.folder / f"{arm}-{seed}.json").write_text(json.dumps(facts))
        return
    run_missing(arguments.job, arguments.folder.resolve(), arguments.seeds, arguments.words)
    files = {arm: sorted(arguments.folder.glob(f"{arm}-[0-9]*.json")) for arm in ARMS}
    arms = {arm: [json.loads(file.read_text()) for file in each] for arm, each in files.items()}
    levels = dict(enumerate(smoothed(arms["grpo"]), start=WINDOW))
    end, level = levels.popitem()
    report: dict = {
        "job": [*job.words, *arguments.words],
        "srpo_only": job.progress,
        "window": WINDOW,
        "grpo_final": level,
    }
    for arm, runs in arms.items():
        at, final = reached(runs, level), smoothed(runs)[-1]
        before = {iteration: reached(runs, each) for iteration, each in levels.items()}
        report[arm] = {"final": final, "reached_at": at, "reached_grpos_of_iteration": before, "runs": runs}
        print(f"{arm:8} {len(runs)} seeds: final {final:.3f}, GRPO's {level:.3f} at {at} of {end}; before: {before}")
    (ROOT / f"benchmarks/results/{job.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(job, arms, level)


if __name__ == "__main__":
    main()
