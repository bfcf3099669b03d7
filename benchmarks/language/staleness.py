"""Gain and cost of rollouts ahead of training: ``rollout.max_staleness`` against the synchronous run.

    python -m benchmarks.language.staleness --folder /tmp/staleness

Every run is what a user runs (``python -m flows.grpo experiment=math rollout.num_workers=1 seed=…``, about four
minutes), in its own process, with one core each for a rollout worker and a trainer rank. The arms take turns, seed by
seed. Finished runs in the folder are reused. An arm's ratio is the median seconds per iteration of the synchronous run
divided by its own, for the same seed. The bound is the speed-up of a pipeline without any other cost: the seconds of
all nodes of the synchronous run divided by those of its longer lane, rollout or training. Results go to
``benchmarks/results/staleness.json`` and ``docs/images/staleness.png``.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from benchmarks.robots.learning import draw, line, run, summarize
from embodyflow.orchestration.run.iterations.graph_run import rollout_nodes
from embodyflow.record.run_folder import RunFolder
from pipelines import load_pipeline

WORDS = ["rollout.num_workers=1"]
SYNCHRONOUS = "synchronous"
ARMS = {
    SYNCHRONOUS: [],
    "one ahead, recorded": ["rollout.max_staleness=1"],
    "one ahead, proximal": ["rollout.max_staleness=1", "algorithm.old_log_probs=proximal"],
    "two ahead, proximal": ["rollout.max_staleness=2", "algorithm.old_log_probs=proximal"],
}
RESULTS = ROOT / "benchmarks/results/staleness.json"
NUM_WARM_UP = 5
"""Number of first iterations to leave out, because the first rollouts do not wait for training."""


def timings(folder: Path) -> dict[str, float]:
    """Return the median seconds of a run's iterations, in total and of the nodes of each lane."""
    records = [line for line in RunFolder(folder).metrics.read() if "perf/iteration_seconds" in line][NUM_WARM_UP:]
    graph = load_pipeline(name="language_grpo")
    ahead = rollout_nodes(graph)
    lanes = {"rollout": ahead, "training": graph.nodes.keys() - ahead}
    seconds = {
        lane: statistics.median(sum(record[f"perf/{node}_seconds"] for node in nodes) for record in records)
        for lane, nodes in lanes.items()
    }
    return seconds | {"iteration": statistics.median(record["perf/iteration_seconds"] for record in records)}


def seconds_to_half(facts: dict[str, Any]) -> float:
    """Return the seconds of training until half of the responses in five iterations are correct."""
    curve = facts["curve"]
    means = (statistics.mean(curve[start : start + 5]) for start in range(len(curve) - 4))
    reached = next((start + 5 for start, mean in enumerate(means) if mean >= 0.5), math.inf)
    return reached * float(facts["seconds"]["iteration"])


def compare(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Print and return the figures of all arms."""
    found = []
    for arm, each in runs.items():
        ratios = [
            theirs["seconds"]["iteration"] / mine["seconds"]["iteration"]
            for theirs, mine in zip(runs[SYNCHRONOUS], each, strict=True)
        ]
        means, speed = summarize(each), statistics.median(ratios)
        half = statistics.median(map(seconds_to_half, each))
        found.append(
            {"arm": arm, "speed": speed, "ratios": ratios, "seconds_to_half": half, "mean": means, "runs": each}
        )
        print(f"{arm:22} {speed:.2f}x, half correct after {half:.0f} s, greedy {means['success_rate_after']:.3f}")
    return found


def bound(seconds: dict[str, float]) -> float:
    """Return the speed-up of a run whose two lanes overlap perfectly."""
    return (seconds["rollout"] + seconds["training"]) / max(seconds["rollout"], seconds["training"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in arguments.seeds:
        for arm, words in ARMS.items():
            name = arm.replace(", ", "-").replace(" ", "-")
            facts = run("grpo", name, seed, arguments.folder, [*WORDS, *words, *arguments.words], "math")
            runs[arm].append(facts | {"seconds": timings(arguments.folder / f"{name}-{seed}")})
            print(line(arm, runs[arm][-1]), flush=True)
    comparisons = compare(runs)
    most = statistics.median(bound(facts["seconds"]) for facts in runs[SYNCHRONOUS])
    print(f"bound {most:.2f}x")
    write_report(RESULTS, ("torch", "transformers", "ray", "prefect"), comparisons, bound=most, words=arguments.words)
    draw(runs, ROOT / "docs/images/staleness.png", "sums, rollouts ahead of training; dots: unseen sums")


if __name__ == "__main__":
    main()
