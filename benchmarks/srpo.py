"""Does SRPO reach GRPO's final success sooner, where most groups fail at first?

    python benchmarks/srpo.py --seeds 0 1 2 --folder /tmp/srpo

Every run is what a user runs (``python -m flows.srpo experiment=embodied …``) in a process of its own. Runs that the
folder holds already are not run again, so the whole may be done in pieces (``--arms srpo --seeds 1``). Once all are
there it writes ``benchmarks/results/srpo.json`` and ``docs/images/srpo.png``.

GRPO's final success is the mean of its last ``WINDOW`` iterations, over all seeds; an arm has reached it at the first
iteration at which its mean curve, over as many iterations, is as high.
"""

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.learning import ROOT, draw, line, result, run, summarize

JOB = ["env.tasks=[push-v3]", "env.max_steps=100", "iterations=12"]
ARMS = {"grpo": ("grpo", []), "srpo": ("srpo", []), "srpo-std": ("srpo", ["algorithm.advantage=grpo"])}
"""Flow and further words of each; ``srpo-std`` divides by the group's deviation, as the paper's objective does."""
WINDOW = 3


def smoothed(runs: list[dict]) -> list[float]:
    """Return the mean success over seeds and the last ``WINDOW`` iterations, for each iteration from ``WINDOW`` on."""
    mean = [statistics.mean(values) for values in zip(*(each["curve"] for each in runs), strict=True)]
    return [statistics.mean(mean[end - WINDOW : end]) for end in range(WINDOW, len(mean) + 1)]


def reached(runs: list[dict], level: float) -> int | None:
    """Return the first iteration at which the smoothed curve is at that level."""
    return next((end for end, rate in enumerate(smoothed(runs), start=WINDOW) if rate >= level), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, required=True, help="of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides, for all runs")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for arm in arguments.arms:
            flow, words = ARMS[arm]
            if not (arguments.folder / f"{arm}-{seed}" / "summary.json").exists():
                run(flow, arm, seed, arguments.folder, [*JOB, *words, *arguments.words])
            print(line(arm, result(arguments.folder / f"{arm}-{seed}")), flush=True)
    done = {arm: sorted(arguments.folder.glob(f"{arm}-[0-9]*/summary.json")) for arm in ARMS}
    arms = {arm: [result(path.parent) for path in paths] for arm, paths in done.items() if paths}
    report: dict = {"job": [*JOB, *arguments.words]}
    level = smoothed(arms["grpo"])[-1]
    iterations = len(arms["grpo"][0]["curve"])
    for arm, runs in arms.items():
        at = reached(runs, level)
        report[arm] = {"mean": summarize(runs), "level": level, "reached_at": at, "runs": runs}
        print(f"{arm:8} {len(runs)} seeds: GRPO's final {level:.3f} at iteration {at} of {iterations}")
    (ROOT / "benchmarks/results/srpo.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(arms, ROOT / "docs/images/srpo.png", "push-v3 from two demonstrations; dots: unseen goals, greedy")


if __name__ == "__main__":
    main()
