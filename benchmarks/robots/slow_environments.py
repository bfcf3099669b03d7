"""Speed of streaming where each step of a robot's environment takes 20 to 200 ms more, against the synchronous run.

    python -m benchmarks.robots.slow_environments --folder /tmp/slow
    LIBERO_ASSETS=… python -m benchmarks.robots.slow_environments --jobs libero --folder /tmp/slow

Every run is ``python -m flows.grpo experiment=push`` or ``experiment=libero``, scaled down, in the environments of
``benchmarks/robots/slow_steps.py`` and ``benchmarks/robots/slow_libero.py``. Each environment has a process of its own
in all arms: a sleep costs no core, so more processes would help none of them. The arms take turns, round by round.
Finished runs in the folder are reused. Samples per second are the episodes of the iterations after the first two,
divided by their time. Success is that on unseen goals before and after the same number of iterations.

The report also has two bounds: seconds of a chunk of steps in which all environments wait for the slowest, divided by
those of an environment alone. The first is for the environments of a worker, the second for those of a group. Results
go to ``benchmarks/results/slow_environments.json``, which keeps those of jobs that are not run.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from benchmarks.language.streaming import STREAMED_ARMS, SYNCHRONOUS, compare, name_of, samples_per_second, take_turns
from benchmarks.report import write_report
from benchmarks.robots.learning import result
from benchmarks.robots.slow_steps import LONGEST, SHORTEST

ARMS = {SYNCHRONOUS: [], **STREAMED_ARMS}
GROUP_SIZE, CHUNK_SIZE = 8, 5
COMMON = [
    *("rollout.num_workers=1", f"rollout.group_size={GROUP_SIZE}", f"policy.chunk_size={CHUNK_SIZE}"),
    *("evaluation.every=null", "evaluation.video=false"),
]
JOBS = {
    "push": [
        *("env.id=benchmarks.robots.slow_steps:SlowMetaWorld-v0", "evaluation.num_goals=64"),
        *("rollout.num_groups=8", "iterations=8"),
    ],
    "libero": [
        *(
            "env.id=benchmarks.robots.slow_libero:SlowLIBERO-v0",
            "env.tasks=[libero_object/0]",
            "evaluation.num_goals=20",
        ),
        *("rollout.num_groups=4", "iterations=20"),
    ],
}
NUM_ENVS = {"push": 32, "libero": 16}
SUCCESS = ("success_rate_before", "success_rate_after", "sampled_success_rate_before", "sampled_success_rate_after")
RESULTS = ROOT / "benchmarks/results/slow_environments.json"


def lockstep(num_envs: int, chunks: int = 20_000) -> float:
    """Return the mean time of the slowest of ``num_envs`` chunks of steps, divided by the mean time of a chunk."""
    draws = np.random.default_rng(0).uniform(math.log(SHORTEST), math.log(LONGEST), (chunks, num_envs, CHUNK_SIZE))
    seconds = np.exp(draws).sum(axis=-1)
    return float(seconds.max(axis=1).mean() / seconds.mean())


def measure(job: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the arms of a job; return their speeds and their success."""
    folder, num_envs = arguments.folder / job, NUM_ENVS[job]
    sizes = [f"rollout.envs_per_worker={num_envs}", f"rollout.env_processes={num_envs}"]
    words = [*COMMON, *JOBS[job], *sizes, *arguments.words]
    arms = {arm: (ARMS[arm], range(arguments.rounds)) for arm in arguments.arms}
    comparisons = compare(take_turns(arms, folder, words, job, samples_per_second))
    for each in comparisons:
        runs = [result(folder / f"{name_of(each['arm'])}-{round_}") for round_ in range(arguments.rounds)]
        each["success"] = {key: [run[key] for run in runs] for key in SUCCESS}
        print(f"{each['arm']:34} {each['success']}")
    bounds = {"worker": lockstep(num_envs), "group": lockstep(GROUP_SIZE)}
    return {"job": job, "words": words, "bounds": bounds, "arms": comparisons}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=["push"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    kept = json.loads(RESULTS.read_text())["comparisons"] if RESULTS.exists() else []
    measured = {each["job"]: each for each in kept} | {job: measure(job, arguments) for job in arguments.jobs}
    write_report(RESULTS, ("torch", "ray", "prefect"), list(measured.values()))


if __name__ == "__main__":
    main()
