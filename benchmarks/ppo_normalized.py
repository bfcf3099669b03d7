"""PPO on HalfCheetah-v5 with normalised observations, by our flow and by Stable-Baselines3: learning curves.

    python -m benchmarks.ppo_normalized --seeds 0 1 2

Ours is what a user runs, ``python -m flows.ppo experiment=half_cheetah policy.normalize_observations=true``. SB3 has
``VecNormalize`` around the same environments, without normalised rewards, and the same hyper-parameters. The third
contender is ours without normalisation. The contenders take turns seed by seed. A curve shows the mean return, in the
environment's own rewards, of the episodes that ended in each iteration. The script measures no speed.

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

from benchmarks.ppo_control import (
    ROOT,
    build_stable_baselines3,
    parser_of,
    recorder_of,
    runs_in,
    watch,
    with_run,
)

RESULTS, PICTURE = ROOT / "benchmarks/results/ppo_normalized.json", ROOT / "docs/images/ppo_normalized.png"
OURS, PEER, PLAIN = "embodyflow", "stable-baselines3", "embodyflow, not normalised"
CONTENDERS = {OURS: "tab:blue", PEER: "tab:orange", PLAIN: "tab:gray"}


def measure(name: str, iterations: int, seed: int) -> dict[str, Any]:
    """Run one contender with one seed."""
    words = ["experiment=half_cheetah", f"iterations={iterations}", f"seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        if name == PEER:
            metrics = Path(folder, "metrics.jsonl")
            command = ["-m", "benchmarks.ppo_normalized", "--stable-baselines3", str(metrics), *words]
        else:
            metrics = Path(folder, "run", "metrics.jsonl")
            words += [f"run_root={folder}", "run_id=run", "tracking.tensorboard=false"]
            command = ["-m", "flows.ppo", *words, f"policy.normalize_observations={str(name == OURS).lower()}"]
        records = watch([sys.executable, *command], metrics, Path(folder, "log"))
    return {
        "contender": name,
        "seed": seed,
        "steps": np.cumsum([record["rollout/num_steps"] for record in records]).tolist(),
        "returns": [record.get("rollout/reward") for record in records],
    }


def run_stable_baselines3(metrics: Path, words: list[str]) -> None:
    """Train with SB3's PPO and VecNormalize, writing a line per iteration."""
    from stable_baselines3.common.vec_env import VecNormalize

    from embodyflow.config.composition.compose import compose_config

    config: Any = compose_config([*words, "algorithm=ppo"])
    clip = config.policy.observation_clip
    model = build_stable_baselines3(config, lambda env: VecNormalize(env, norm_reward=False, clip_obs=clip))
    model.learn(config.iterations * config.rows_per_iteration, callback=recorder_of(metrics, config.rows_per_iteration))
    model.env.close()


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return final returns by contender, and the share of points where the ranges of ours and SB3's overlap."""
    by_name = {name: [run for run in runs if run["contender"] == name] for name in CONTENDERS}
    final = {
        name: [[each for each in run["returns"] if each is not None][-1] for run in of_name]
        for name, of_name in by_name.items()
    }
    curves = ([run["returns"] for run in by_name[name]] for name in (OURS, PEER))
    points = [
        (ours, peers)
        for ours, peers in zip(*(zip(*each, strict=False) for each in curves), strict=False)
        if None not in ours + peers
    ]
    overlap = [min(ours) <= max(peers) and min(peers) <= max(ours) for ours, peers in points]
    return {"overlapping_points": statistics.mean(overlap), "num_points": len(points), "final_returns": final}


def draw(runs: list[dict[str, Any]]) -> None:
    """Plot every seed's curve."""
    figure = Figure(figsize=(5.2, 3.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name, color in CONTENDERS.items():
        chosen = [run for run in runs if run["contender"] == name]
        for run in chosen:
            kept = [(x / 1e3, y) for x, y in zip(run["steps"], run["returns"], strict=True) if y is not None]
            label = name if run is chosen[0] else None
            axes.plot(*zip(*kept, strict=True), color=color, lw=0.8, alpha=0.8, label=label)
    axes.set(xlabel="thousands of environment steps", ylabel="return of episodes", title="HalfCheetah-v5")
    axes.legend(fontsize=8)
    figure.savefig(PICTURE)


def save(runs: list[dict[str, Any]]) -> None:
    """Write the runs, and their comparison once every contender has run."""
    result: dict[str, Any] = {"runs": runs}
    if {run["contender"] for run in runs} == CONTENDERS.keys():
        result = {"comparison": compare(runs), **result}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    draw(runs)


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
            print(f"seed {seed} {name}: return {run['returns'][-1]}", flush=True)
            save(runs)


if __name__ == "__main__":
    main()
