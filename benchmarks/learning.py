"""Does the default job learn? Seeds side by side, and a control whose advantages are zero.

    python benchmarks/learning.py --seeds 0 1 2 3 4 --control-seeds 0 1 2

Every run is what a user runs (``python -m flows.grpo experiment=embodied seed=…``) in a process of its own. Writes
``benchmarks/results/learning.json`` and ``docs/images/learning.png``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure
from tensordict import TensorDict

from embodyflow.types import NodeOutput
from pipelines import Pipeline, TaskGraph, load_pipeline
from tasks import compute_advantage

ROOT = Path(__file__).resolve().parent.parent
COLORS = ("tab:blue", "tab:gray", "tab:orange")
CONTROL = ["pipeline.custom_fn=benchmarks.learning:without_advantage"]


def without_advantage() -> TaskGraph:
    """Return the default graph with every advantage replaced by zero."""
    pipeline = Pipeline("control", "GRPO that is told nothing")
    for node in load_pipeline("embodied_grpo").nodes.values():
        func = "benchmarks.learning:zero_advantage" if node.node_id == "advantage" else node.executable_ref
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


def zero_advantage(batch: TensorDict, config=None, **kwargs) -> NodeOutput:
    """Compute the advantages, then forget them."""
    output = compute_advantage(batch, config, **kwargs)
    output.batch["advantages"].zero_()
    return output


def run(flow: str, name: str, seed: int, root: Path, words: list[str]) -> dict:
    command = [sys.executable, "-m", f"flows.{flow}", "experiment=embodied", f"seed={seed}", f"run_root={root}"]
    command += [f"run_id={name}-{seed}", "evaluation.video=false", *words]
    with (root / f"{name}-{seed}.log").open("w") as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode
    if code != 0:
        tail = (root / f"{name}-{seed}.log").read_text()[-2000:]
        raise SystemExit(f"{' '.join(command)}\nexit code {code}\n{tail}")
    return result(root / f"{name}-{seed}")


def result(folder: Path) -> dict:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [r["rollout/success_rate"] for r in records if "rollout/success_rate" in r]
    mixed = [r.get("groups/mixed_fraction") for r in records if "rollout/success_rate" in r]
    episodes = sum(r.get("rollout/num_episodes", 0) for r in records)
    facts = {"curve": curve, "mixed_fraction": mixed, "num_episodes": int(episodes)}
    return json.loads((folder / "summary.json").read_text()) | facts


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


def draw(arms: dict[str, list[dict]], path: Path) -> None:
    figure = Figure(figsize=(7, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for (name, runs), color in zip(arms.items(), COLORS, strict=False):
        for r in runs:
            axes.plot(range(1, len(r["curve"]) + 1), r["curve"], color=color, lw=0.7, alpha=0.4)
        mean = [statistics.mean(values) for values in zip(*(r["curve"] for r in runs), strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, color=color, lw=2, label=f"{name}: training, sampled")
        for x, key in ((0, "success_rate_before"), (len(mean) + 0.5, "success_rate_after")):
            axes.plot([x] * len(runs), [r[key] for r in runs], "o", color=color, ms=4)
    axes.set(xlabel="iteration", ylabel="success rate", ylim=(0, 1.03))
    axes.set_title("reach-v3 from sparse success; dots: unseen goals, greedy, before and after", fontsize=9)
    axes.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--control-seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--words", nargs="*", default=[], help="further overrides, for both arms")
    arguments = parser.parse_args()
    arms: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for arm, seeds, words in (("grpo", arguments.seeds, []), ("control", arguments.control_seeds, CONTROL)):
            for seed in seeds:
                arms.setdefault(arm, []).append(run("grpo", arm, seed, Path(folder), words + arguments.words))
                print(line(arm, arms[arm][-1]), flush=True)
    report = {name: {"mean": summarize(runs), "runs": runs} for name, runs in arms.items()}
    for name, arm in report.items():
        print(name, json.dumps(arm["mean"]))
    (ROOT / "benchmarks/results/learning.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(arms, ROOT / "docs/images/learning.png")


if __name__ == "__main__":
    main()
