"""Speed of streaming where episodes take very different times, against the synchronous run of the same commit.

    python -m benchmarks.language.streaming --folder /tmp/streaming

Every run is ``python -m flows.grpo`` with the job of ``benchmarks/language/long_tails.py``: three calls of a tool per
episode, each of 50 ms to 2 s. The arms take turns, round by round. Finished runs in the folder are reused. Samples per
second are the rows of the iterations after the first two, divided by their time. Results go to
``benchmarks/results/streaming.json``.
"""

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from benchmarks.robots.learning import run
from embodyflow.record.run_folder import RunFolder

AHEAD = ["algorithm.old_log_probs=proximal"]
STREAMING = ["rollout.mode=streaming", *AHEAD]
SYNCHRONOUS = "synchronous"
STREAMED_ARMS = {
    "streaming by index, one ahead": ["rollout.max_staleness=1", *STREAMING],
    "streaming first ready, one ahead": ["rollout.max_staleness=1", "rollout.order=first_ready", *STREAMING],
    "streaming first ready, two ahead": ["rollout.max_staleness=2", "rollout.order=first_ready", *STREAMING],
}
ARMS = {SYNCHRONOUS: [], "one ahead": ["rollout.max_staleness=1", *AHEAD], **STREAMED_ARMS}
JOB = [
    *("rollout.agent.workflow=benchmarks.language.long_tails:Waiter", "rollout.agent.max_turns=3"),
    *("rollout.agent.tools=[benchmarks.language.long_tails:wait]", "rollout.agent.max_turn_tokens=4"),
    "warm_start=null",
    *("rollout.num_workers=1", "rollout.num_groups=8", "rollout.group_size=4", "rollout.max_response_tokens=110"),
    *("policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=2", "policy.scratch.intermediate_size=64"),
    *("trainer.num_minibatches=1", "trainer.schedule.name=constant", "filter.drop_uniform=false"),
    *("evaluation.num_prompts=4", "iterations=12"),
]
NUM_WARM_UP = 2
"""Number of first iterations to leave out: the first rollouts start before there is anything to train."""
RESULTS = ROOT / "benchmarks/results/streaming.json"


def samples_per_second(folder: Path) -> float:
    """Return the trained rows of a run per second."""
    records = [line for line in RunFolder(folder).metrics.read() if "perf/iteration_seconds" in line][NUM_WARM_UP:]
    rows = sum(record["rollout/num_episodes"] for record in records)
    return float(rows / sum(record["perf/iteration_seconds"] for record in records))


def name_of(arm: str) -> str:
    """Return the first part of the names of an arm's runs, which end with the round."""
    return arm.replace(", ", "-").replace(" ", "-")


def take_turns(
    arms: Mapping[str, Sequence[str]], rounds: int, folder: Path, job: Sequence[str], experiment: str
) -> tuple[dict[str, list[float]], list[float]]:
    """Run each arm once per round; return samples per second by arm, and the machine's load before each run."""
    speeds: dict[str, list[float]] = {arm: [] for arm in arms}
    loads = []
    for round_ in range(rounds):
        for arm, words in arms.items():
            loads.append(os.getloadavg()[0])
            run("grpo", name_of(arm), round_, folder, [*job, *words], experiment)
            speeds[arm].append(samples_per_second(folder / f"{name_of(arm)}-{round_}"))
            print(f"round {round_}, {arm}: {speeds[arm][-1]:.2f} samples/s", flush=True)
    return speeds, loads


def compare(speeds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Print and return the figures of all arms; a ratio is to the synchronous run of the same round."""
    found = []
    for arm, each in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(each, speeds[SYNCHRONOUS], strict=True)]
        found.append({"arm": arm, "samples_per_second": each, "ratios": ratios, "ratio": statistics.median(ratios)})
        print(f"{arm:34} {statistics.median(each):6.2f} samples/s, {found[-1]['ratio']:.2f}x")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    arms = {arm: ARMS[arm] for arm in arguments.arms}
    job = [*JOB, *arguments.words]
    speeds, loads = take_turns(arms, arguments.rounds, arguments.folder, job, "calculator")
    settings = {"words": arguments.words, "loads_before_runs": loads}
    write_report(RESULTS, ("torch", "transformers", "ray", "prefect"), compare(speeds), **settings)


if __name__ == "__main__":
    main()
