"""Do the training flows learn the default job? Three seeds per flow.

    python benchmarks/language/algorithms.py --seeds 0 1 2 --folder /tmp/algorithms

Every run is what a user runs (``python -m flows.ppo experiment=embodied seed=…``), in its own process. Finished runs in
the folder are reused, so the benchmark can be done in pieces (``--flows ppo --seeds 1``). Once all runs are finished,
the script writes ``benchmarks/results/algorithms.json`` and ``docs/images/algorithms.png``. It exits with 1 if a flow's
greedy success on unseen goals, averaged over seeds, rises by less than 0.25.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.commands import ROOT
from benchmarks.robots.learning import NO_VIDEO, draw, result, run_all, summarize

FLOWS = ("grpo", "ppo", "dapo")
SEEDS = (0, 1, 2)
WANTED_LIFT = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flows", nargs="+", default=FLOWS, choices=FLOWS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    run_all(arguments.flows, arguments.seeds, arguments.folder, NO_VIDEO + arguments.words, "embodied")
    folders = {flow: [arguments.folder / f"{flow}-{seed}" for seed in SEEDS] for flow in FLOWS}
    if not all((folder / "summary.json").exists() for each in folders.values() for folder in each):
        return
    arms = {flow: [result(folder) for folder in each] for flow, each in folders.items()}
    report = {flow: {"mean": summarize(runs), "runs": runs} for flow, runs in arms.items()}
    lifts = {
        flow: arm["mean"]["success_rate_after"] - arm["mean"]["success_rate_before"] for flow, arm in report.items()
    }
    for flow, lift in lifts.items():
        report[flow]["mean"]["lift"] = lift
        print(f"{flow:8} lift {lift:.3f}")
    (ROOT / "benchmarks/results/algorithms.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(arms, ROOT / "docs/images/algorithms.png")
    if min(arm["mean"]["lift"] for arm in report.values()) < WANTED_LIFT:
        sys.exit(1)


if __name__ == "__main__":
    main()
