"""How much do groups of episodes teach, and what decides it? One factor at a time around each task's recipe.

    python benchmarks/robots/exploration.py --experiments push --folder /tmp/exploration

A group teaches only if its episodes have different outcomes. So for every setting the script measures the greedy
success on unseen goals after the warm start, and the success of one batch of episodes with its fraction of groups with
both outcomes. With ``--iterations N`` it also measures the greedy success after N iterations. Points in the folder are
reused. ``--factors`` restricts the sweep to some factors. Results go to ``benchmarks/results/exploration.json`` and
``docs/images/exploration.png``.
"""

import argparse
import json
import time
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.control.in_process import InProcessRun

ROOT = Path(__file__).resolve().parents[2]
FACTORS: dict[str, tuple] = {
    "warm_start.num_demos": (1, 2, 4, 8),
    "warm_start.action_noise": (0.0, 0.05, 0.1, 0.2, 0.4),
    "warm_start.smoothing_bins": (6.0, 12.0, 24.0, 40.0),
    "policy.chunk_size": (1, 5, 10),
    "policy.num_bins": (64, 256),
    "rollout.temperature": (0.7, 1.0, 1.3, 1.6),
    "rollout.chunk_correlation": (0.0, 0.25, 0.5, 1.0),
    "rollout.group_size": (4, 8, 16),  # larger groups have mixed outcomes more often
}
SIZES = ("rollout.num_groups=24", "rollout.group_size=8", "evaluation.num_goals=48", "filter.num_groups=null")
CURVES = {"greedy": "unseen goals, greedy", "sampled": "episodes of a batch", "mixed": "groups with both outcomes"}


def words_of(experiment: str, factor: str, value: float | int, seed: int) -> list[str]:
    """Return the overrides of a point of the sweep."""
    words = [f"experiment={experiment}", f"seed={seed}", *SIZES, f"{factor}={value}"]
    if factor == "policy.num_bins":  # keeps the smoothing's width in units of the action
        words.append(f"warm_start.smoothing_bins={recipe(experiment)['warm_start.smoothing_bins'] * value / 256}")
    return words


def recipe(experiment: str) -> dict[str, float | int]:
    """Return the recipe's own value of each factor."""
    from embodyflow.config.composition.compose import compose_config

    config = compose_config([f"experiment={experiment}", "run_id=recipe"])
    values: dict = {}
    for factor in FACTORS:
        section, _, key = factor.partition(".")
        values[factor] = getattr(getattr(config, section), key)
    return values


def measure(words: list[str], iterations: int) -> dict[str, float]:
    """Return the measurements of a setting."""
    started = time.perf_counter()
    run = InProcessRun(words)
    run.warm_start()
    facts = {"greedy": run.success()[0]}
    metrics = run.iterate(1)
    facts |= {
        "sampled": metrics["rollout/success_rate"],
        "mixed": metrics["groups/mixed_fraction"],
        "all_failed": metrics["groups/all_failure_fraction"],
    }
    for iteration in range(2, iterations + 1):
        run.iterate(iteration)
    if iterations:
        facts["greedy_after"] = run.success()[0]
    run.rollout.close()
    return facts | {"seconds": round(time.perf_counter() - started, 1)}


def point(folder: Path, experiment: str, factor: str, value: float | int, arguments: argparse.Namespace) -> dict:
    """Return a point, averaged over seeds; measure seeds that the folder lacks."""
    seeds = []
    for seed in arguments.seeds:
        file = folder / f"{experiment}-{factor}-{value}-{seed}-{arguments.iterations}.json"
        if not file.exists():
            file.write_text(json.dumps(measure(words_of(experiment, factor, value, seed), arguments.iterations)))
            print(experiment, f"{factor}={value}", f"seed={seed}", file.read_text(), flush=True)
        seeds.append(json.loads(file.read_text()))
    return {"value": value, **{name: sum(each[name] for each in seeds) / len(seeds) for name in seeds[0]}}


def draw(report: dict, path: Path) -> None:
    num_factors = len(next(iter(report.values())))
    figure = Figure(figsize=(2.2 * num_factors, 2.1 * len(report) + 0.5), dpi=110, layout="constrained")
    axes = figure.subplots(len(report), num_factors, squeeze=False, sharey=True)
    for row, (experiment, factors) in zip(axes, report.items(), strict=True):
        for axis, (factor, points) in zip(row, factors.items(), strict=True):
            positions = range(len(points))
            for name, label in CURVES.items():
                axis.plot(positions, [each[name] for each in points], "o-", ms=3, lw=1, label=label)
            axis.set_xticks(positions, [f"{each['value']:g}" for each in points])
            axis.set(xlabel=factor, ylim=(-0.03, 1.03))
            axis.xaxis.label.set_size(7)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel(experiment, fontsize=8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", nargs="+", default=["push"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--factors", nargs="+", default=list(FACTORS), choices=FACTORS)
    parser.add_argument("--iterations", type=int, default=0, help="iterations to train each point for")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the points")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    report: dict = {}
    for experiment in arguments.experiments:
        own = recipe(experiment)
        report[experiment] = {
            factor: [
                point(arguments.folder, experiment, factor, value, arguments)
                for value in sorted({*values, own[factor]})
            ]
            for factor, values in FACTORS.items()
            if factor in arguments.factors
        }
    document = {"seeds": arguments.seeds, "iterations": arguments.iterations, "sizes": SIZES, "factors": report}
    (ROOT / "benchmarks/results/exploration.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(report, ROOT / "docs/images/exploration.png")


if __name__ == "__main__":
    main()
