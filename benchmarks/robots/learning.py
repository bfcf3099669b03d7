"""Does a job learn? Several seeds, and a control whose advantages are zero.

    python benchmarks/robots/learning.py --seeds 0 1 2 3 4 --control-seeds 0 1 2
    python benchmarks/robots/learning.py --experiment push --seeds 0 1 2 --in-process --folder /tmp/push

Every run is what a user runs (``python -m flows.grpo experiment=embodied seed=…``), in its own process, or with
``--in-process`` the same without Ray and Prefect. Finished runs in the folder are reused. Results go to
``benchmarks/results/learning.json`` and ``docs/images/learning.png``, or for an experiment other than the default to
``learning_<experiment>.json`` and ``.png``.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tensordict import TensorDict

from benchmarks.commands import ROOT, run_command
from embodyflow.config.composition.compose import compose_config
from embodyflow.types import NodeOutput
from pipelines import Pipeline, TaskGraph, load_pipeline
from tasks import compute_advantage

COLORS = ("tab:blue", "tab:gray", "tab:orange", "tab:green", "tab:purple")
NO_VIDEO = ["evaluation.video=false"]
CONTROL = ["pipeline.custom_fn=benchmarks.robots.learning:without_advantage"]


def without_advantage() -> TaskGraph:
    """Return the default graph with every advantage replaced by zero."""
    pipeline = Pipeline("control", "GRPO with advantages of zero")
    for node in load_pipeline("embodied_grpo").nodes.values():
        func = "benchmarks.robots.learning:zero_advantage" if node.node_id == "advantage" else node.executable_ref
        pipeline.add_node(
            node.node_id,
            func=func,
            deps=list(node.dependencies),
            node_type=node.node_type,
            node_role=node.node_role,
            only_forward_compute=node.only_forward_compute,
            reads=node.reads,
            writes=("advantages", "returns") if node.node_id == "advantage" else node.writes,
        )
    return pipeline.build()


def zero_advantage(batch: TensorDict, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Compute the advantages, then replace them by zeros."""
    output = compute_advantage(batch, config, **kwargs)
    output.batch["advantages"].zero_()
    return output


def run(flow: str, name: str, seed: int, root: Path, words: list[str], experiment: str) -> dict:
    """Return the result of a run, which is started only if the folder ``root`` lacks it."""
    folder, log = root / f"{name}-{seed}", root / f"{name}-{seed}.log"
    if not (folder / "summary.json").exists():
        root.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", f"flows.{flow}", f"experiment={experiment}", f"seed={seed}"]
        command += [f"run_root={root}", f"run_id={folder.name}", *words]
        run_command(command, log)
    return result(folder)


def run_all(flows: Sequence[str], seeds: Sequence[int], folder: Path, words: list[str], experiment: str) -> None:
    """Run every flow with every seed, except runs that the folder already has."""
    for flow, seed in itertools.product(flows, seeds):
        print(line(flow, run(flow, flow, seed, folder, words, experiment)), flush=True)


def result(folder: Path) -> dict:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [r["rollout/success_rate"] for r in records if "rollout/success_rate" in r]
    mixed = [r.get("groups/mixed_fraction") for r in records if "rollout/success_rate" in r]
    episodes = sum(r.get("rollout/num_episodes", 0) for r in records)
    facts = {"curve": curve, "mixed_fraction": mixed, "num_episodes": int(episodes)}
    return json.loads((folder / "summary.json").read_text()) | facts


def run_in_process(name: str, seed: int, root: Path, words: list[str], experiment: str) -> dict:
    """Return the result of a run in one process, which is started only if the folder ``root`` lacks it."""
    file = root / f"{name}-{seed}.json"
    if not file.exists():
        root.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "benchmarks.control.in_process",
            str(file),
            f"experiment={experiment}",
            f"seed={seed}",
        ]
        subprocess.run([*command, *words], cwd=ROOT, check=True)
    return json.loads(file.read_text())


def summarize(runs: list[dict]) -> dict:
    keys = ("success_rate_before", "success_rate_after", "sampled_success_rate_before", "sampled_success_rate_after")
    means = {key: statistics.mean(r[key] for r in runs) for key in keys}
    return means | {
        "lowest_success_rate_after": min(r["success_rate_after"] for r in runs),
        "mean_train_seconds": statistics.mean(r["train_seconds"] for r in runs),
    }


def line(arm: str, r: dict) -> str:
    return (
        f"{arm:8} seed {r['seed']}: greedy {r['success_rate_before']:.2f} -> {r['success_rate_after']:.2f}, "
        f"sampled {r['sampled_success_rate_before']:.2f} -> {r['sampled_success_rate_after']:.2f}, "
        f"{r['num_episodes']} episodes, {r['train_seconds']:.0f} s"
    )


def draw(
    arms: dict[str, list[dict]], path: Path, title: str = "reach-v3 from sparse success; dots: unseen goals"
) -> None:
    """Plot the curves of all arms; with several tasks also the first arm's success on each task."""
    first = next(iter(arms.values()))
    tasks = list(first[0].get("success_rates_after", {}))
    num_panels = 2 if len(tasks) > 1 else 1
    figure = Figure(figsize=(7 + 4.5 * (num_panels - 1), 3.4), dpi=120, layout="constrained")
    axes, *rest = figure.subplots(1, num_panels, squeeze=False, width_ratios=(3, 2)[:num_panels])[0]
    for (name, runs), color in zip(arms.items(), COLORS, strict=False):
        for r in runs:
            axes.plot(range(1, len(r["curve"]) + 1), r["curve"], color=color, lw=0.7, alpha=0.4)
        mean = [statistics.mean(values) for values in zip(*(r["curve"] for r in runs), strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, color=color, lw=2, label=f"{name}: training, sampled")
        for x, key in ((0, "success_rate_before"), (len(mean) + 0.5, "success_rate_after")):
            axes.plot([x] * len(runs), [r[key] for r in runs], "o", color=color, ms=4)
    axes.set(xlabel="iteration", ylabel="success rate", ylim=(0, 1.03))
    axes.set_title(f"{title}, greedy, before and after", fontsize=9)
    axes.legend(fontsize=8, loc="lower right")
    for panel in rest:
        draw_tasks(panel, tasks, first)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_tasks(axes: Any, tasks: Sequence[str], runs: list[dict]) -> None:
    """Plot the greedy success on each task's unseen goals before and after training, averaged over runs."""
    for offset, moment, color in ((0.2, "before", "tab:gray"), (-0.2, "after", COLORS[0])):
        means = [statistics.mean(r[f"success_rates_{moment}"][task] for r in runs) for task in tasks]
        axes.barh([k + offset for k in range(len(tasks))], means, 0.4, color=color, label=moment)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.set_title("unseen goals of each task, greedy", fontsize=9)
    axes.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default="embodied", help="name in configs/experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--control-seeds", type=int, nargs="*", help="default: 0 1 2 for the default experiment")
    parser.add_argument("--in-process", action="store_true", help="run without Ray and Prefect")
    parser.add_argument("--folder", type=Path, help="folder of the runs; default: a temporary one")
    parser.add_argument("--words", nargs="*", default=[], help="further overrides for both arms")
    arguments = parser.parse_args()
    experiment = arguments.experiment
    name = "learning" if experiment == "embodied" else f"learning_{experiment}"
    control_seeds = arguments.control_seeds
    if control_seeds is None:
        control_seeds = [0, 1, 2] if experiment == "embodied" else []
    arms: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for arm, seeds, words in (("grpo", arguments.seeds, []), ("control", control_seeds, CONTROL)):
            for seed in seeds:
                if arguments.in_process:
                    facts = run_in_process(arm, seed, folder, words + arguments.words, experiment)
                else:
                    facts = run("grpo", arm, seed, folder, words + NO_VIDEO + arguments.words, experiment)
                arms.setdefault(arm, []).append(facts)
                print(line(arm, facts), flush=True)
    report = {arm: {"mean": summarize(runs), "runs": runs} for arm, runs in arms.items()}
    for arm, facts in report.items():
        print(arm, json.dumps(facts["mean"]))
    (ROOT / f"benchmarks/results/{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    config: Any = compose_config([f"experiment={experiment}"])
    tasks = config.env.tasks
    subject = tasks[0] if len(tasks) == 1 else experiment
    draw(arms, ROOT / f"docs/images/{name}.png", f"{subject} from sparse success; dots: unseen goals")


if __name__ == "__main__":
    main()
