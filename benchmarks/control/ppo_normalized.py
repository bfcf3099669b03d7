"""PPO on HalfCheetah-v5 with normalised observations and rewards, by our flow and by Stable-Baselines3.

    python -m benchmarks.control.ppo_normalized --seeds 0 1 2

Ours is what a user runs: ``python -m flows.ppo experiment=half_cheetah`` with ``policy.normalize_observations=true``
and ``policy.normalize_returns=true``. SB3 has ``VecNormalize`` around the same environments, and the same
hyper-parameters. One difference remains: ``VecNormalize`` updates its statistics at every step, ours change after an
iteration. The contenders take turns seed by seed. A curve shows the mean return, in the environment's own rewards, of
the episodes that ended in each iteration. The script measures no speed.

Runs are added to ``benchmarks/results/ppo_normalized.json``, where they replace runs with the same seed, and
``docs/images/ppo_normalized.png`` shows all of them.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.commands import ROOT, run_command
from benchmarks.control.ppo_control import (
    CONTENDERS,
    build_stable_baselines3,
    parser_of,
    recorder_of,
    runs_in,
    with_run,
)

RESULTS, PICTURE = ROOT / "benchmarks/results/ppo_normalized.json", ROOT / "docs/images/ppo_normalized.png"
OURS, PEER = CONTENDERS
NORMALISED = ("policy.normalize_observations=true", "policy.normalize_returns=true")
LAST_SHARE = 0.25
"""Share of the steps, at the end, whose episodes the contenders are compared by."""

Run = dict[str, Any]


def measure(name: str, iterations: int, seed: int) -> Run:
    """Run one contender with one seed."""
    words = ["experiment=half_cheetah", f"iterations={iterations}", f"seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        if name == PEER:
            metrics = Path(folder, "metrics.jsonl")
            command = ["-m", "benchmarks.control.ppo_normalized", "--stable-baselines3", str(metrics), *words]
        else:
            metrics = Path(folder, "run", "metrics.jsonl")
            words += [f"run_root={folder}", "run_id=run", "tracking.tensorboard=false"]
            command = ["-m", "flows.ppo", *words, *NORMALISED]
        run_command([sys.executable, *command], Path(folder, "log"))
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        "contender": name,
        "seed": seed,
        "steps": np.cumsum([int(record["rollout/num_steps"]) for record in records]).tolist(),
        "returns": [record.get("rollout/reward") for record in records],
    }


def run_stable_baselines3(metrics: Path, words: list[str]) -> None:
    """Train with SB3's PPO and VecNormalize, writing a line per iteration."""
    from stable_baselines3.common.vec_env import VecNormalize

    from embodyflow.config.composition.compose import compose_config

    config: Any = compose_config([*words, "algorithm=ppo"])
    clips = {"clip_obs": config.policy.observation_clip, "clip_reward": config.policy.reward_clip}
    model = build_stable_baselines3(config, lambda env: VecNormalize(env, gamma=config.algorithm.gamma, **clips))
    model.learn(config.iterations * config.rows_per_iteration, callback=recorder_of(metrics, config.rows_per_iteration))
    model.env.close()


def compare(runs: list[Run]) -> dict[str, Any]:
    """Compare the contenders by their episodes of the last steps, and by the share of points where ranges overlap.

    The difference is ours minus SB3's mean over seeds, in units of the deviation over seeds, pooled over both.
    """
    by_name = {name: [run for run in runs if run["contender"] == name] for name in CONTENDERS}
    last = {name: [last_return(run) for run in by_name[name]] for name in by_name}
    result: dict[str, Any] = {"last_share": LAST_SHARE, "last_returns": last, **overlap(by_name[OURS], by_name[PEER])}
    if min(map(len, last.values())) > 1:
        pooled = statistics.mean(statistics.variance(values) for values in last.values()) ** 0.5
        result["difference_in_deviations"] = (statistics.mean(last[OURS]) - statistics.mean(last[PEER])) / pooled
    return result


def last_return(run: Run) -> float:
    """Return the mean of a run's points in the last steps; a point is the mean over the episodes of an iteration."""
    first = (1 - LAST_SHARE) * run["steps"][-1]
    points = zip(run["steps"], run["returns"], strict=True)
    return statistics.mean(value for steps, value in points if steps > first and value is not None)


def overlap(ours: list[Run], peers: list[Run]) -> dict[str, Any]:
    """Return the share of points at which the ranges over seeds overlap, and the number of points."""
    curves = (zip(*(run["returns"] for run in each), strict=False) for each in (ours, peers))
    points = [(mine, theirs) for mine, theirs in zip(*curves, strict=False) if None not in mine + theirs]
    overlapping = [min(mine) <= max(theirs) and min(theirs) <= max(mine) for mine, theirs in points]
    return {"overlapping_points": statistics.mean(overlapping), "num_points": len(points)}


def draw(runs: list[Run]) -> None:
    """Plot the mean curve of each contender, with a band from the lowest to the highest seed."""
    figure = Figure(figsize=(5.2, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name, color in CONTENDERS.items():
        chosen = [run for run in runs if run["contender"] == name]
        columns = zip(*(run["returns"] for run in chosen), strict=False)
        points = [(x / 1e3, ys) for x, ys in zip(chosen[0]["steps"], columns, strict=False) if None not in ys]
        steps, returns = [x for x, _ in points], np.array([ys for _, ys in points])
        axes.plot(steps, returns.mean(1), color=color, lw=1.4, label=f"{name}, {len(chosen)} seeds")
        axes.fill_between(steps, returns.min(1), returns.max(1), color=color, alpha=0.2, lw=0)
    axes.set(xlabel="thousands of environment steps", ylabel="return of episodes", title="HalfCheetah-v5, normalised")
    axes.legend(fontsize=8)
    figure.savefig(PICTURE)


def save(runs: list[Run]) -> None:
    """Write the runs, and their comparison once both contenders have run."""
    result: dict[str, Any] = {"runs": runs}
    if {run["contender"] for run in runs} == CONTENDERS.keys():
        result = {"comparison": compare(runs), **result}
        draw(runs)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    arguments, words = parser_of(__doc__, iterations=50).parse_known_args()
    if arguments.stable_baselines3:
        run_stable_baselines3(arguments.stable_baselines3, words)
        return
    runs = runs_in(RESULTS)
    for seed in arguments.seeds:
        for name in CONTENDERS:
            run = measure(name, arguments.iterations, seed)
            runs = with_run(runs, run, ("contender", "seed"))
            print(f"seed {seed} {name}: return {last_return(run):.1f}", flush=True)
            save(runs)


if __name__ == "__main__":
    main()
