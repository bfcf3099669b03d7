"""Does streaming learn sooner where tools are slow? Speed and curves by the clock, against the synchronous run.

    python -m benchmarks.agents.slow_tools --folder /tmp/slow_tools

Every run is ``python -m flows.grpo experiment=calculator``, whose calculator answers after 50 ms to 2 s
(``benchmarks/agents/slow_calculator.py``). The arms take turns, seed by seed. Finished runs in the folder are reused.

Two figures of an arm are medians over seeds, by the synchronous run of the same seed: samples per second of all
iterations but the first two; and seconds of training until the mean success of :data:`WINDOW` iterations reaches the
final one of the synchronous run, less :data:`TOLERANCE`. Success after training is on unseen problems. One arm has a
calculator that answers at once. Results go to ``benchmarks/results/slow_tools.json`` and
``docs/images/slow_tools.png``.
"""

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.commands import ROOT
from benchmarks.language.streaming import ARMS as LANGUAGE_ARMS
from benchmarks.language.streaming import SYNCHRONOUS, TWO_AHEAD, samples_per_second, take_turns
from benchmarks.report import write_report
from benchmarks.robots.learning import result
from embodyflow.record.run_folder import RunFolder

INTERRUPTED = f"{TWO_AHEAD}, interrupted"
BOUND = "synchronous, no waits"
ARMS = {
    BOUND: ["rollout.agent.tools=[embodyflow.agents.calculator:calculate]"],
    **LANGUAGE_ARMS,
    INTERRUPTED: [*LANGUAGE_ARMS[TWO_AHEAD], "rollout.interrupt.when=published"],
    "streaming first ready, eight ahead, not decoupled": [
        *("rollout.mode=streaming", "rollout.order=first_ready", "rollout.max_staleness=8"),
    ],
}
JOB = [
    "rollout.agent.tools=[{function: benchmarks.agents.slow_calculator:calculate, concurrency: 512}]",
    # Small iterations wait for tools for most of their time: a streamed run can win no more than they wait.
    *("rollout.num_workers=1", "rollout.num_groups=16", "trainer.num_minibatches=2", "iterations=200"),
    "evaluation.num_prompts=128",
]
WINDOW, TOLERANCE = 5, 0.02
RESULTS, PICTURE = ROOT / "benchmarks/results/slow_tools.json", ROOT / "docs/images/slow_tools.png"


@dataclass(frozen=True)
class Curve:
    """What one run did.

    Attributes:
        seconds: Seconds of training after each iteration.
        success: Mean success in training of the last :data:`WINDOW` iterations, at each iteration.
        samples_per_second: Trained rows per second, without the first iterations.
        greedy_success_after: Success on unseen problems after training, with the likeliest tokens.
        sampled_success_after: The same with sampled tokens.
    """

    seconds: list[float]
    success: list[float]
    samples_per_second: float
    greedy_success_after: float
    sampled_success_after: float

    def seconds_until(self, success: float) -> float | None:
        """Return the seconds until training reached a success rate, or None if it did not."""
        reached = (second for second, rate in zip(self.seconds, self.success, strict=True) if rate >= success)
        return next(reached, None)


def curve_of(folder: Path) -> Curve:
    """Return the curve of a finished run."""
    records = [line for line in RunFolder(folder).metrics.read() if "perf/iteration_seconds" in line]
    rates, facts = [record["rollout/success_rate"] for record in records], result(folder)
    return Curve(
        seconds=list(itertools.accumulate(record["perf/iteration_seconds"] for record in records)),
        success=[statistics.mean(rates[max(0, end - WINDOW) : end]) for end in range(1, len(rates) + 1)],
        samples_per_second=samples_per_second(folder),
        greedy_success_after=facts["success_rate_after"],
        sampled_success_after=facts["sampled_success_rate_after"],
    )


def time_to_learn(mine: Curve, theirs: Curve) -> float | None:
    """Return the time to the final success of another run, less the tolerance, as a share of that run's time."""
    level = theirs.success[-1] - TOLERANCE
    needed, their_need = mine.seconds_until(level), theirs.seconds_until(level)
    return needed / their_need if needed and their_need else None


def compare(curves: Mapping[str, Sequence[Curve]]) -> list[dict[str, Any]]:
    """Print and return the figures of all arms; a ratio is to the synchronous run of the same seed."""
    return [figures(arm, each, curves[SYNCHRONOUS][: len(each)]) for arm, each in curves.items()]


def figures(arm: str, mine: Sequence[Curve], theirs: Sequence[Curve]) -> dict[str, Any]:
    """Print and return the figures of an arm beside the synchronous runs of its seeds."""
    pairs = list(zip(mine, theirs, strict=True))
    speeds = [one.samples_per_second / other.samples_per_second for one, other in pairs]
    times = [time_to_learn(one, other) for one, other in pairs]
    reached = [time for time in times if time is not None]
    time = statistics.median(reached) if len(reached) == len(times) else None
    print(f"{arm:42} {statistics.median(speeds):5.2f}x, time to the same success {times}")
    return {
        "arm": arm,
        "ratio": statistics.median(speeds),
        "ratios": speeds,
        "time": time,
        "times": times,
        "greedy_success_after": statistics.mean(one.greedy_success_after for one in mine),
        "sampled_success_after": statistics.mean(one.sampled_success_after for one in mine),
        "runs": [asdict(one) for one in mine],
    }


def draw(curves: Mapping[str, Sequence[Curve]]) -> None:
    """Plot success by the clock, a line per run."""
    figure = Figure(figsize=(7, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (arm, each) in enumerate(curves.items()):
        for position, curve in enumerate(each):
            label = arm if position == 0 else None
            axes.plot(curve.seconds, curve.success, color=f"C{number}", lw=1.1, alpha=0.8, label=label)
    axes.set(xlabel="seconds of training", ylabel="success in training", ylim=(0, 1.03))
    axes.set_title("products with a calculator that takes 50 ms to 2 s", fontsize=9)
    axes.legend(fontsize=7, loc="lower right")
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11501, 11502, 11503])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--once", nargs="*", choices=ARMS, default=[], help="arms with the first seed alone")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    arms = {arm: (ARMS[arm], seeds[:1] if arm in arguments.once else seeds) for arm in arguments.arms}
    curves = take_turns(arms, arguments.folder, [*JOB, *arguments.words], "calculator", curve_of)
    packages = ("torch", "transformers", "ray", "prefect")
    write_report(RESULTS, packages, compare(curves), seeds=arguments.seeds, words=arguments.words)
    draw(curves)


if __name__ == "__main__":
    main()
