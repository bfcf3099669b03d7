"""Does SRPO reach GRPO's final success sooner, where most groups fail at first?

    python benchmarks/srpo.py --seeds 0 1 2 3 4 5 --folder /tmp/srpo

A run is one process (``benchmarks/in_process.py``): the numbers are those of ``python -m flows.srpo``, and two runs
share two cores. Runs that the folder holds already are not run again. Once all are there it writes
``benchmarks/results/srpo.json`` and ``docs/images/srpo.png``.

GRPO's final success is the mean of its last ``WINDOW`` iterations over all seeds; an arm has reached it at the first
iteration at which its mean curve, over as many iterations, is as high.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
JOB = [
    "experiment=embodied",
    "env.tasks=[reach-v3]",
    "warm_start.num_demos=1",
    "iterations=24",
    "rollout.num_groups=16",
]
ARMS = {"grpo": "tab:gray", "srpo": "tab:blue"}
"""Flows, and their colours."""
WINDOW = 3


def train(arm: str, seed: int, words: list[str]) -> dict:
    """Train once; return the success of each iteration's episodes and what else is to be seen of it."""
    from benchmarks.in_process import InProcessRun

    run = InProcessRun([f"flow={arm}", f"seed={seed}", *JOB, *words])
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
    """Return the first iteration at which the smoothed curve is at that level."""
    return next((end for end, rate in enumerate(smoothed(runs), start=WINDOW) if rate >= level), None)


def draw(arms: dict[str, list[dict]], level: float, path: Path) -> None:
    figure = Figure(figsize=(7, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for arm, runs in arms.items():
        for run in runs:
            axes.plot(range(1, len(run["curve"]) + 1), run["curve"], color=ARMS[arm], lw=0.6, alpha=0.35)
        values = smoothed(runs)
        axes.plot(range(WINDOW, WINDOW + len(values)), values, color=ARMS[arm], lw=2, label=arm)
    axes.axhline(level, color="tab:gray", lw=0.8, ls=":")
    axes.set(xlabel="iteration", ylabel="success of its episodes", ylim=(0, 1.03))
    axes.set_title("reach-v3 from one demonstration: seeds, and their mean over three iterations", fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path)


def run_missing(folder: Path, seeds: list[int], words: list[str]) -> None:
    """Run what the folder lacks, two at a time, arms side by side."""
    wanted = [(arm, seed) for seed in seeds for arm in ARMS if not (folder / f"{arm}-{seed}.json").exists()]
    running: list[subprocess.Popen] = []
    try:
        for arm, seed in wanted:
            while len([each for each in running if each.poll() is None]) == 2:
                time.sleep(0.5)
            command = [sys.executable, __file__, "--one", arm, str(seed), "--folder", str(folder), "--words", *words]
            running.append(subprocess.Popen(command, cwd=ROOT))
        codes = [each.wait() for each in running]
    finally:
        for each in running:
            each.kill()
    if any(codes):
        sys.exit("a run failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, required=True, help="of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides, for all runs")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help="run this alone, in this process")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        arm, seed = arguments.one
        facts = train(arm, int(seed), arguments.words)
        (arguments.folder / f"{arm}-{seed}.json").write_text(json.dumps(facts))
        return
    run_missing(arguments.folder, arguments.seeds, arguments.words)
    files = {arm: sorted(arguments.folder.glob(f"{arm}-[0-9]*.json")) for arm in ARMS}
    arms = {arm: [json.loads(file.read_text()) for file in each] for arm, each in files.items()}
    levels = dict(enumerate(smoothed(arms["grpo"]), start=WINDOW))
    end, level = levels.popitem()
    report: dict = {"job": [*JOB, *arguments.words], "window": WINDOW, "grpo_final": level}
    for arm, runs in arms.items():
        at, final = reached(runs, level), smoothed(runs)[-1]
        before = {iteration: reached(runs, each) for iteration, each in levels.items()}
        report[arm] = {"final": final, "reached_at": at, "reached_grpos_of_iteration": before, "runs": runs}
        print(f"{arm:8} {len(runs)} seeds: final {final:.3f}, GRPO's {level:.3f} at {at} of {end}; before: {before}")
    (ROOT / "benchmarks/results/srpo.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(arms, level, ROOT / "docs/images/srpo.png")


if __name__ == "__main__":
    main()
