"""What evaluations cost training: between iterations, by rollout workers beside training, and by a worker of its own.

    python -m benchmarks.orchestration.evaluation_beside --folder /tmp/evaluation_beside

Every run is ``python -m flows.grpo experiment=embodied`` with one rollout worker, evaluated after every second
iteration. The arms take turns, round by round. Finished runs in the folder are reused. An arm's seconds per iteration
are those of its iterations and of its waits for evaluations, without the first two iterations. Its cost is the share by
which they exceed those of the run of the same round that is evaluated before and after training only. Numbers of all
arms must be equal. Results go to ``benchmarks/results/evaluation_beside.json``.
"""

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from benchmarks.robots.learning import run
from embodyflow.record.run_folder import RunFolder

UNEVALUATED = "before and after training"
EVERY = ["evaluation.every=2"]
ARMS = {
    UNEVALUATED: [],
    "between iterations": EVERY,
    "beside, rollout worker": [*EVERY, "evaluation.beside=true"],
    "beside, worker of its own": [*EVERY, "evaluation.beside=true", "evaluation.own_worker=true"],
}
JOB = ["rollout.num_workers=1", "iterations=16", "evaluation.video=false"]
NUM_WARM_UP = 2
"""Number of first iterations to leave out: the evaluation before training goes on beside them."""
RESULTS = ROOT / "benchmarks/results/evaluation_beside.json"


def seconds_per_iteration(folder: Path, *, is_beside: bool) -> float:
    """Return the seconds of a run's iterations, and of what training waited for evaluations, per iteration."""
    records = RunFolder(folder).metrics.read()
    last = max(record["iteration"] for record in records)
    trained = [record for record in records if "perf/iteration_seconds" in record and record["iteration"] > NUM_WARM_UP]
    evaluated = [
        record for record in records if "eval/num_goals" in record and NUM_WARM_UP < record["iteration"] < last
    ]
    names = ["perf/wait_for_evaluation_seconds"]
    if not is_beside:
        names = [f"perf/evaluate_{mode}_seconds" for mode in ("greedy", "sampled")]
    waits = sum(record[name] for record in evaluated for name in names)
    return float(sum(record["perf/iteration_seconds"] for record in trained) + waits) / len(trained)


def rates(folder: Path) -> dict[int, tuple[float, float]]:
    """Return the success rates of a run's evaluations, by iteration."""
    records = [record for record in RunFolder(folder).metrics.read() if "eval/num_goals" in record]
    return {
        each["iteration"]: (each["eval/greedy_success_rate"], each["eval/sampled_success_rate"]) for each in records
    }


def compare(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Print and return the figures of all arms; a cost is relative to the unevaluated run of the same round."""
    found = []
    for arm, each in seconds.items():
        costs = [mine / theirs - 1 for mine, theirs in zip(each, seconds[UNEVALUATED], strict=True)]
        found.append({"arm": arm, "seconds_per_iteration": each, "costs": costs, "cost": statistics.median(costs)})
        print(f"{arm:28} {statistics.median(each):6.2f} s per iteration, cost {found[-1]['cost']:.1%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    loads = []
    for round_ in range(arguments.rounds):
        measured = []
        for arm, words in ARMS.items():
            name = arm.replace(", ", "-").replace(" ", "-")
            loads.append(os.getloadavg()[0])
            run("grpo", name, round_, arguments.folder, [*JOB, *words, *arguments.words], "embodied")
            folder = arguments.folder / f"{name}-{round_}"
            seconds[arm].append(seconds_per_iteration(folder, is_beside="evaluation.beside=true" in words))
            measured += [rates(folder)] if words else []
        assert all(each == measured[0] for each in measured), "the numbers do not depend on where they are measured"
    comparisons = compare(seconds)
    settings = {"words": arguments.words, "loads_before_runs": loads}
    write_report(RESULTS, ("torch", "ray", "prefect"), comparisons, **settings)


if __name__ == "__main__":
    main()
