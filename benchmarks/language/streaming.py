"""Speed of streaming where episodes take very different times, against the synchronous run of the same commit.

    python -m benchmarks.language.streaming --folder /tmp/streaming

Every run is ``python -m flows.grpo``. In the job `tools` (``benchmarks/language/long_tails.py``) an episode calls a
tool three times, each call taking 50 ms to 2 s. In the job `responses` nothing waits: one token in a vocabulary of two
dozen ends a response, so most are short and a few are long. The arms take turns, round by round. Finished runs in
the folder are reused. Samples per second are the rows of the iterations after the first two, divided by their time.
Results go to ``benchmarks/results/streaming.json``, which keeps those of jobs that are not run.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from benchmarks.robots.learning import run
from embodyflow.record.run_folder import RunFolder

T = TypeVar("T")
AHEAD = ["algorithm.old_log_probs=proximal"]
STREAMING = ["rollout.mode=streaming", *AHEAD]
SYNCHRONOUS = "synchronous"
TWO_AHEAD = "streaming first ready, two ahead"
STREAMED_ARMS = {
    "streaming by index, one ahead": ["rollout.max_staleness=1", *STREAMING],
    "streaming first ready, one ahead": ["rollout.max_staleness=1", "rollout.order=first_ready", *STREAMING],
    TWO_AHEAD: ["rollout.max_staleness=2", "rollout.order=first_ready", *STREAMING],
    "streaming first ready, four ahead": ["rollout.max_staleness=4", "rollout.order=first_ready", *STREAMING],
    "streaming first ready, eight ahead": ["rollout.max_staleness=8", "rollout.order=first_ready", *STREAMING],
}
ARMS = {
    SYNCHRONOUS: [],
    "one ahead": ["rollout.max_staleness=1", *AHEAD],
    **STREAMED_ARMS,
    f"{TWO_AHEAD}, interpolated": [*STREAMED_ARMS[TWO_AHEAD], "algorithm.old_log_probs=interpolated"],
}
COMMON = [
    *("warm_start=null", "rollout.num_workers=1", "iterations=12"),
    *("trainer.num_minibatches=1", "trainer.schedule.name=constant", "filter.drop_uniform=false"),
    "evaluation.num_prompts=4",
]
JOBS = {
    "tools": (
        "calculator",
        [
            *("rollout.agent.workflow=benchmarks.language.long_tails:Waiter", "rollout.agent.max_turns=3"),
            *("rollout.agent.tools=[benchmarks.language.long_tails:wait]", "rollout.agent.max_turn_tokens=4"),
            *("rollout.num_groups=8", "rollout.group_size=4", "rollout.max_response_tokens=110"),
            *("policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=2"),
            "policy.scratch.intermediate_size=64",
        ],
    ),
    "responses": (
        "math",
        [
            *("rollout.num_groups=16", "rollout.group_size=8"),
            *("rollout.max_response_tokens=400", "policy.scratch.max_position_embeddings=512"),
            *("policy.scratch.hidden_size=256", "policy.scratch.num_hidden_layers=6"),
            "policy.scratch.intermediate_size=768",
        ],
    ),
}
"""Experiment and overrides by job."""
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
    arms: Mapping[str, tuple[Sequence[str], Sequence[int]]],
    folder: Path,
    job: Sequence[str],
    experiment: str,
    read: Callable[[Path], T],
) -> dict[str, list[T]]:
    """Run each arm once per seed, seed by seed; return what ``read`` finds in the folders of the runs.

    Args:
        arms: Overrides and seeds by arm.
        folder: Folder of the runs; finished ones are reused.
        job: Overrides of all arms.
        experiment: Experiment of all arms.
        read: Function that reads the folder of a finished run.
    """
    found: dict[str, list[T]] = {arm: [] for arm in arms}
    for seed in sorted({seed for _, seeds in arms.values() for seed in seeds}):
        for arm, (words, seeds) in arms.items():
            if seed in seeds:
                run("grpo", name_of(arm), seed, folder, [*job, *words], experiment)
                place = folder / f"{name_of(arm)}-{seed}"
                found[arm].append(read(place))
                print(f"seed {seed}, {arm}: {samples_per_second(place):.2f} samples/s", flush=True)
    return found


def compare(speeds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Print and return the figures of all arms; a ratio is to the synchronous run of the same round."""
    found = []
    for arm, each in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(each, speeds[SYNCHRONOUS], strict=True)]
        found.append({"arm": arm, "samples_per_second": each, "ratios": ratios, "ratio": statistics.median(ratios)})
        print(f"{arm:34} {statistics.median(each):6.2f} samples/s, {found[-1]['ratio']:.2f}x")
    return found


def measure(job: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the arms of a job; return their speeds."""
    experiment, words = JOBS[job]
    arms = {arm: (ARMS[arm], range(arguments.rounds)) for arm in arguments.arms}
    words = [*COMMON, *words, *arguments.words]
    speeds = take_turns(arms, arguments.folder / job, words, experiment, samples_per_second)
    return {"job": job, "words": words, "arms": compare(speeds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    kept = json.loads(RESULTS.read_text())["comparisons"] if RESULTS.exists() else []
    measured = {each["job"]: each for each in kept} | {job: measure(job, arguments) for job in arguments.jobs}
    write_report(RESULTS, ("torch", "transformers", "ray", "prefect"), list(measured.values()))


if __name__ == "__main__":
    main()
