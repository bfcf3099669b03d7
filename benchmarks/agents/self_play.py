"""Does self-play learn Kuhn poker? The exploitability of a small Qwen, exactly, as it plays with itself.

    python -m benchmarks.agents.self_play --folder /tmp/kuhn
    python -m benchmarks.agents.self_play --folder /tmp/kuhn --seeds 1 --words algorithm.entropy_coef=0.2

Every run is ``experiment=kuhn`` without Ray and Prefect (:mod:`benchmarks.control.in_process`). Exploitability is half
of NashConv, in chips per game: 0.458 for uniform play, 0 for optimal play. The average strategy is that of the second
half of the run, whose last one may go round in circles. Finished runs in the folder are reused. Results go to
``benchmarks/results/self_play.json``. The script exits with 1 if exploitability did not fall to a quarter in the mean.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.control.in_process import InProcessRun
from benchmarks.report import write_report
from embodyflow.agents.games.kuhn_reading import Reading, read_strategy
from embodyflow.agents.games.kuhn_strategy import Strategy, average, exploitability, value

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (11302, 11303, 11304)
FACTOR = 4


def train(seed: int, every: int, words: list[str]) -> dict[str, Any]:
    """Train one run; return the exploitability before, every few iterations and after."""
    run = InProcessRun(["experiment=kuhn", f"seed={seed}", *words])
    run.warm_start()
    curve = [point(0, read(run))]
    strategies: list[Strategy] = []
    started = time.perf_counter()
    for iteration in range(1, run.config.iterations + 1):
        metrics = run.iterate(iteration)
        reading = read(run)
        if 2 * iteration > run.config.iterations:
            strategies.append(reading.strategy)
        if iteration % every == 0 or iteration == run.config.iterations:
            curve.append(point(iteration, reading) | {"entropy": metrics["policy/entropy"]})
            print(seed, curve[-1], f"{time.perf_counter() - started:.0f} s", flush=True)
    return {
        "seed": seed,
        "before": curve[0]["exploitability"],
        "after": curve[-1]["exploitability"],
        "after_average": exploitability(average(strategies)),
        "train_seconds": time.perf_counter() - started,
        "curve": curve,
        "strategy": [[card, " ".join(history), chances] for (card, history), chances in reading.strategy.items()],
    }


def read(run: InProcessRun) -> Reading:
    """Return the strategy of the policy that a run has published."""
    return read_strategy(run.rollout._engine.score, run.rollout.tokenizer, run.config.data.prompt)


def point(iteration: int, reading: Reading) -> dict[str, float]:
    """Return the figures of a strategy after an iteration."""
    strategy = reading.strategy
    return {
        "iteration": iteration,
        "exploitability": exploitability(strategy),
        "value_of_first": value(strategy, strategy),
        "legal": reading.legal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--every", type=int, default=5, help="iterations between two points of the curve")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs' results")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for all runs")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in arguments.seeds:
        file = arguments.folder / f"kuhn-{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(train(seed, arguments.every, arguments.words), indent=1) + "\n")
        runs.append(json.loads(file.read_text()))
    mean = {key: statistics.mean(each[key] for each in runs) for key in ("before", "after", "after_average")}
    print(mean)
    write_report(
        ROOT / "benchmarks/results/self_play.json",
        ("torch", "transformers"),
        [{"arm": "self-play", "mean": mean, "runs": runs}],
        words=arguments.words,
    )
    if mean["after"] * FACTOR > mean["before"]:
        sys.exit(f"not met: exploitability {mean['before']:.3f} must fall to a quarter, fell to {mean['after']:.3f}")


if __name__ == "__main__":
    main()
