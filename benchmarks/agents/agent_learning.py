"""Do agents learn? Several seeds of an experiment, tested on problems and seeds that training never saw.

    python -m benchmarks.agents.agent_learning --folder /tmp/calculator
    python -m benchmarks.agents.agent_learning --experiment self_correct --folder /tmp/self_correct
    python -m benchmarks.agents.agent_learning --experiment babyai --folder /tmp/babyai

Every run is what a user runs (``python -m flows.grpo experiment=calculator seed=…``), in its own process. The control
of ``calculator`` has no tool. Its demonstrations state results without a call, and its warm start has a fixed number of
steps, more than that of the others. Finished runs in the folder are reused. Results go to
``benchmarks/results/agent_learning.json`` and ``docs/images/agent_learning.png``, or for another experiment to
``agent_learning_<experiment>.json`` and ``.png``. The script exits with 1 if a claim in :data:`EXPERIMENTS` is not met.
Rates are means over the seeds, greedy where nothing else is said. The claims on *calculator* and *babyai*
are on sampled success, which training maximises: a model that copies a number at random in most samples may copy it
greedily.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from benchmarks.robots.learning import draw, line, run, summarize

Means = Mapping[str, Mapping[str, float]]
"""Means of the runs by arm and figure."""


@dataclass(frozen=True)
class Experiment:
    """What is run and claimed.

    Attributes:
        title: Title of the picture.
        seeds: Seeds for published figures; the recipes were found with seeds from 1 to 3.
        claims: Claims on the means by their text.
        arms: Overrides by arm.
    """

    title: str
    seeds: tuple[int, ...]
    claims: Mapping[str, Callable[[Means], bool]]
    arms: Mapping[str, list[str]] = field(default_factory=lambda: {"grpo": []})


NO_TOOL = ["rollout.agent.tools=[]", "data.demonstrate_calls=false", "warm_start.until=null", "warm_start.steps=120"]
EXPERIMENTS = {
    "calculator": Experiment(
        "products with a calculator, reward for a correct result; dots: unseen products",
        (11501, 11502, 11503),
        {
            "sampled at most 0.3 before": lambda means: means["tool"]["sampled_success_rate_before"] <= 0.3,
            "sampled at least 0.9 after": lambda means: means["tool"]["sampled_success_rate_after"] >= 0.9,
            "at most 0.4 after without the tool": lambda means: means["no tool"]["success_rate_after"] <= 0.4,
        },
        {"tool": [], "no tool": NO_TOOL},
    ),
    "self_correct": Experiment(
        "sums with a second answer after a wrong one; dots: unseen sums",
        (11271, 11272, 11273),
        {
            "the second turn adds at least 0.2 after": lambda means: (
                means["grpo"]["turn_2_after"] - means["grpo"]["turn_1_after"] >= 0.2
            ),
            "the gain of the second turn grows": lambda means: (
                means["grpo"]["turn_2_after"] - means["grpo"]["turn_1_after"]
                > means["grpo"]["turn_2_before"] - means["grpo"]["turn_1_before"]
            ),
        },
    ),
    "babyai": Experiment(
        "MiniGrid's GoToDoor by text; dots: unseen seeds",
        (11301, 11302, 11303),
        {
            "sampled at most 0.5 before": lambda means: means["grpo"]["sampled_success_rate_before"] <= 0.5,
            "sampled at least 0.9 after": lambda means: means["grpo"]["sampled_success_rate_after"] >= 0.9,
        },
    ),
}


def success_by_turn(folder: Path) -> dict[str, float]:
    """Return the greedy success within one and two turns, before and after training, from the records of a run."""
    records = [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [each for each in records if "eval/greedy_success_turn_1" in each]
    return {
        f"turn_{turn}_{moment}": each[f"eval/greedy_success_turn_{turn}"]
        for moment, each in (("before", evaluated[0]), ("after", evaluated[-1]))
        for turn in (1, 2)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="calculator")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the experiment")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    experiment = EXPERIMENTS[arguments.experiment]
    arms: dict[str, list[dict]] = {}
    for arm, words in experiment.arms.items():
        for seed in arguments.seeds or experiment.seeds:
            name = arm.replace(" ", "_")
            facts = run("grpo", name, seed, arguments.folder, [*words, *arguments.words], arguments.experiment)
            facts |= success_by_turn(arguments.folder / f"{name}-{seed}")
            arms.setdefault(arm, []).append(facts)
            print(line(arm, facts), flush=True)
    turns = [f"turn_{turn}_{moment}" for turn in (1, 2) for moment in ("before", "after")]
    means = {
        arm: summarize(runs) | {key: statistics.mean(each[key] for each in runs) for key in turns}
        for arm, runs in arms.items()
    }
    file = "agent_learning" if arguments.experiment == "calculator" else f"agent_learning_{arguments.experiment}"
    comparisons = [{"arm": arm, "mean": means[arm], "runs": runs} for arm, runs in arms.items()]
    write_report(ROOT / f"benchmarks/results/{file}.json", ("torch", "transformers"), comparisons)
    draw(arms, ROOT / f"docs/images/{file}.png", experiment.title)
    missed = [text for text, holds in experiment.claims.items() if not holds(means)]
    if missed:
        sys.exit(f"not met: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
