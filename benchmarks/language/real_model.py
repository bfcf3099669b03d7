"""Does GRPO teach a published model sums that it gets wrong? ``experiment=gemma_sums``, tested on sums held out.

    python -m benchmarks.language.real_model --folder /tmp/gemma policy.path=<file.gguf>

The model is Gemma 3 270M, a base model, in the package of the extra ``real-model``. A run is one process without Ray
and Prefect (:mod:`benchmarks.control.in_process`). The result has the success on held-out sums before and after
training with 95 % intervals over prompts, the seconds of the iterations, how far the log-probs of rollout and trainer
differ, the peak of the process's memory, and the first texts. Results go to ``benchmarks/results/real_model.json`` and
``docs/images/real_model.png``.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.commands import ROOT
from benchmarks.control.in_process import InProcessRun
from benchmarks.report import write_report
from embodyflow.data.batches import to_batch

RESULTS, PICTURE = ROOT / "benchmarks/results/real_model.json", ROOT / "docs/images/real_model.png"
SHOWN = ("rollout/success_rate", "groups/mixed_fraction", "parity/log_prob_gap")
"""Metrics of an iteration that a result keeps. The last is absent if no row to train on was among those compared."""
NUM_RESAMPLES = 10_000


def train(words: list[str], minutes: float) -> dict[str, Any]:
    """Evaluate, train until all iterations or the minutes have passed, and evaluate again; return the figures."""
    run = InProcessRun(["experiment=gemma_sums", *words])
    run.warm_start()
    facts: dict[str, Any] = {"seed": run.config.seed, "before": evaluated(run), "curve": []}
    print(facts["before"]["greedy"], facts["before"]["sampled"], flush=True)
    started = time.perf_counter()
    for iteration in range(1, run.config.iterations + 1):
        metrics, seconds = run.iterate(iteration), time.perf_counter() - started
        shown = {name: metrics[name] for name in SHOWN if name in metrics}
        facts["curve"].append({"iteration": iteration, "seconds": seconds, **shown})
        print(facts["curve"][-1], f"{peak_memory():.1f} GB", flush=True)
        if seconds > 60 * minutes:
            break
    facts |= {"train_seconds": time.perf_counter() - started, "after": evaluated(run)}
    lift = np.array(facts["after"]["by_prompt"]) - np.array(facts["before"]["by_prompt"])
    return facts | {"lift": interval(lift), "peak_memory_gb": peak_memory()}


def evaluated(run: InProcessRun) -> dict[str, Any]:
    """Return the success on the validation prompts, greedy and sampled, the latter by prompt, and the first texts."""
    config, rollout = run.config, run.rollout
    result: dict[str, Any] = {}
    for mode, draws in {"greedy": None, "sampled": (config.seed, "evaluate")}.items():
        rows = to_batch(rollout.play(rollout.evaluation_episodes(mode), "eval", draws))
        judged, _, shown = rollout.judge(rows, "eval")
        by_prompt = judged["success"].double().view(config.evaluation.num_prompts, -1).mean(1).numpy()
        result |= {mode: interval(by_prompt), f"{mode}_texts": [(each["prompt"], each["response"]) for each in shown]}
    return result | {"by_prompt": by_prompt.tolist()}


def interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean of independent values and its 95 % interval, by the bootstrap."""
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(1), (0.025, 0.975)).tolist()
    return {"mean": float(values.mean()), "low": low, "high": high}


def peak_memory() -> float:
    """Return the peak of this process's memory in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def draw(runs: Sequence[dict[str, Any]]) -> None:
    """Plot the success of the sampled answers in training by the clock, a line per run."""
    figure = Figure(figsize=(7, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for run in runs:
        minutes = [point["seconds"] / 60 for point in run["curve"]]
        rates = [point["rollout/success_rate"] for point in run["curve"]]
        axes.plot(minutes, rates, lw=1.2, label=f"seed {run['seed']}")
    axes.set(xlabel="minutes of training", ylabel="success in training", ylim=(0, 1.03))
    axes.set_title("Gemma 3 270M learns sums of two numbers from rewards", fontsize=9)
    axes.legend(fontsize=7, loc="lower right")
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs' results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=60, help="no iteration of training begins after them")
    parser.add_argument("--note", default="", help="circumstances, such as other work on the machine")
    parser.add_argument("words", nargs="+", help="overrides for all runs; policy.path is needed")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in arguments.seeds:
        file = arguments.folder / f"sums-{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(train([f"seed={seed}", *arguments.words], arguments.minutes), indent=1) + "\n")
        runs.append(json.loads(file.read_text()))
    mean = {
        f"{mode}_{moment}": statistics.mean(each[moment][mode]["mean"] for each in runs)
        for moment in ("before", "after")
        for mode in ("greedy", "sampled")
    }
    print(mean)
    words = [word for word in arguments.words if not word.startswith("policy.path=")]
    comparison = {"arm": "gemma_sums", "mean": mean, "runs": runs}
    write_report(RESULTS, ("torch", "transformers"), [comparison], words=words, note=arguments.note)
    draw(runs)
    if any(each["lift"]["low"] <= 0 for each in runs):
        sys.exit("not met: the interval of the lift must be above 0 in every run")


if __name__ == "__main__":
    main()
