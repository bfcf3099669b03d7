"""PPO for continuous control by our flow and by Stable-Baselines3: learning curves and speed.

    python -m benchmarks.control.ppo_control --experiment reacher --seeds 0 1 2
    python -m benchmarks.control.ppo_control --experiment half_cheetah --seeds 0 1 2
    python -m benchmarks.control.ppo_control --experiment half_cheetah trainer.compile=true --output compiled.json

Ours is what a user runs, ``python -m flows.ppo experiment=…``. SB3 has the same environments and hyper-parameters, the
faster of its DummyVecEnv and SubprocVecEnv, and one thread, because the networks are too small for two. The two take
turns seed by seed. A curve shows the mean return of the episodes that ended in each iteration. Speed covers everything
between the end of the first iteration and the end of the last: collecting and learning, for ours also Prefect and Ray.
CPU seconds are those of the process and all its children.

Runs are added to ``benchmarks/results/ppo_control.json``, where they replace runs with the same seed, and
``docs/images/ppo_control.png`` shows all of them. With ``--output`` they are added to another file,
and nothing is drawn. Further words, such as ``trainer.compile=true``, go to our flow alone; its first iteration, which
compiles, does not count.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from matplotlib.figure import Figure

from benchmarks.commands import ROOT, check_command, running

RESULTS, PICTURE = ROOT / "benchmarks/results/ppo_control.json", ROOT / "docs/images/ppo_control.png"
TARGET = 2.0
CONTENDERS = {"embodyflow": "tab:blue", "stable-baselines3": "tab:orange"}


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and its living children."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def watch(command: list[str], metrics: Path, log: Path) -> list[dict[str, Any]]:
    """Run a command; return the records it appends to a JSON lines file, each with wall clock and CPU seconds."""
    seen: list[dict[str, Any]] = []
    with running(command, log) as process:
        runs = True
        while runs:
            runs = process.poll() is None
            lines = metrics.read_text().splitlines() if metrics.exists() else []
            if len(lines) > len(seen) and runs:
                clock = {"wall": time.perf_counter(), "cpu": cpu_seconds(process)}
                seen += [json.loads(line) | clock for line in lines[len(seen) :]]
            time.sleep(0.02)
    check_command(command, log, process.returncode)
    return seen


def measure(name: str, experiment: str, iterations: int, seed: int, own_words: Sequence[str] = ()) -> dict[str, Any]:
    """Run one contender with one seed; ``own_words`` are further overrides of our flow."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"experiment={experiment}", f"iterations={iterations}", f"seed={seed}"]
        if name == "embodyflow":
            metrics = Path(folder, "run", "metrics.jsonl")
            words += [*own_words, f"run_root={folder}", "run_id=run", "tracking.tensorboard=false"]
            command = ["-m", "flows.ppo", *words]
        else:
            metrics = Path(folder, "metrics.jsonl")
            command = ["-m", "benchmarks.control.ppo_control", "--stable-baselines3", str(metrics), *words]
        records = watch([sys.executable, *command], metrics, Path(folder, "log"))
    return {
        "contender": name,
        "experiment": experiment,
        "seed": seed,
        "steps": np.cumsum([record["rollout/num_steps"] for record in records]).tolist(),
        "returns": [record.get("rollout/reward") for record in records],
        **speed_of(records),
    }


def speed_of(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return environment steps per second by the clock and of CPU time, without the first iteration."""
    num_steps = sum(record["rollout/num_steps"] for record in records[1:])
    return {f"steps_per_{key}_second": num_steps / (records[-1][key] - records[0][key]) for key in ("wall", "cpu")}


def run_stable_baselines3(metrics: Path, words: list[str]) -> None:
    """Train the experiment with SB3, writing a line per iteration."""
    from embodyflow.config.composition.compose import compose_config

    config: Any = compose_config([*words, "algorithm=ppo"])
    model = build_stable_baselines3(config)
    recorder = recorder_of(metrics, config.rows_per_iteration)
    model.learn(config.iterations * config.rows_per_iteration, callback=recorder)
    model.env.close()


def build_stable_baselines3(config: Any, wrap: Callable[[Any], Any] = lambda env: env) -> Any:
    """Return SB3's PPO with the environments and hyper-parameters of a control job; limit torch to one thread.

    Args:
        config: Configuration of the control job.
        wrap: Function that wraps the vectorised environment.
    """
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    rollout, trainer, algorithm = config.rollout, config.trainer, config.algorithm
    return PPO(
        "MlpPolicy",
        wrap(fastest_vectorisation(config.env.id, rollout.num_workers * rollout.envs_per_worker, config.seed)),
        learning_rate=trainer.learning_rate,
        n_steps=rollout.num_steps,
        batch_size=config.rows_per_iteration // trainer.num_minibatches,
        n_epochs=trainer.epochs,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.lam,
        clip_range=algorithm.clip_low,
        ent_coef=algorithm.entropy_coef,
        max_grad_norm=trainer.max_grad_norm,
        seed=config.seed,
        device="cpu",
    )


def fastest_vectorisation(env_id: str, num_envs: int, seed: int) -> Any:
    """Return the vectorised environment of SB3 that is faster on this machine, and close the other one."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    def seconds(env: Any) -> float:
        env.reset()
        actions, began = np.zeros((num_envs, *env.action_space.shape), np.float32), time.perf_counter()
        for _ in range(100):
            env.step(actions)
        return time.perf_counter() - began

    kinds = (DummyVecEnv, SubprocVecEnv)
    candidates = [make_vec_env(env_id, num_envs, seed=seed, vec_env_cls=kind) for kind in kinds]
    env = min(candidates, key=seconds)
    for other in candidates:
        if other is not env:
            other.close()
    return env


def recorder_of(metrics: Path, steps_per_iteration: int) -> Any:
    """Return an SB3 callback that writes a line per iteration."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Record(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps:  # training on the previous rollout has finished
                self._write()
            self.returns: list[float] = []

        def _on_step(self) -> bool:
            self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

        def _on_training_end(self) -> None:
            self._write()

        def _write(self) -> None:
            line: dict[str, Any] = {"rollout/num_steps": steps_per_iteration}
            if self.returns:
                line["rollout/reward"] = float(np.mean(self.returns))
            with metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")

    return Record()


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return speed ratios (of medians) and the agreement of the curves of one experiment."""
    by_name = {name: [run for run in runs if run["contender"] == name] for name in CONTENDERS}
    ours, peers = by_name.values()
    ratios = {
        f"{key}_ratio": statistics.median(run[key] for run in ours) / statistics.median(run[key] for run in peers)
        for key in ("steps_per_wall_second", "steps_per_cpu_second")
    }
    points = [
        (a, b)
        for a, b in zip(
            zip(*(run["returns"] for run in ours), strict=False),
            zip(*(run["returns"] for run in peers), strict=False),
            strict=False,
        )
        if None not in a + b
    ]
    overlap = [min(a) <= max(b) and min(b) <= max(a) for a, b in points]
    # If episodes are longer than iterations, most iterations have no finished episode.
    ended = {name: [[each for each in run["returns"] if each is not None] for run in by_name[name]] for name in by_name}
    final = {name: [returns[-1] for returns in of_name] for name, of_name in ended.items()}
    return {**ratios, "target": TARGET, "overlapping_points": statistics.mean(overlap), "final_returns": final}


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Plot every seed's curve, with at most three experiments in a row."""
    experiments = sorted({run["experiment"] for run in runs})
    num_columns = min(len(experiments), 3)
    num_rows = -(-len(experiments) // num_columns)
    figure = Figure(figsize=(4.6 * num_columns, 3.2 * num_rows), dpi=120, layout="constrained")
    places = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for axes in places[len(experiments) :]:
        axes.set_axis_off()
    for axes, experiment in zip(places, experiments, strict=False):
        for name, color in CONTENDERS.items():
            chosen = [run for run in runs if (run["experiment"], run["contender"]) == (experiment, name)]
            for run in chosen:
                kept = [(x / 1e3, y) for x, y in zip(run["steps"], run["returns"], strict=True) if y is not None]
                axes.plot(
                    *zip(*kept, strict=True), color=color, lw=0.8, alpha=0.8, label=name if run is chosen[0] else None
                )
        axes.set(xlabel="thousands of environment steps", ylabel="return of episodes", title=experiment)
        axes.legend(fontsize=8)
    figure.savefig(path)


def save(runs: list[dict[str, Any]], results: Path) -> None:
    """Write the runs and their comparison by experiment; plot those of the results file."""
    write(runs, compare, results)
    if results == RESULTS:
        draw(runs, PICTURE)


def write(runs: list[dict[str, Any]], compare: Callable[[list[dict[str, Any]]], dict[str, Any]], results: Path) -> None:
    """Write and print runs, and the comparison of each experiment that all contenders have run."""
    comparisons = {}
    for experiment in sorted({run["experiment"] for run in runs}):
        of_it = [run for run in runs if run["experiment"] == experiment]
        if {run["contender"] for run in of_it} == CONTENDERS.keys():
            comparisons[experiment] = compare(of_it)
            print(experiment, json.dumps(comparisons[experiment]), flush=True)
    results.write_text(json.dumps({"cpus": os.cpu_count(), "comparisons": comparisons, "runs": runs}, indent=1) + "\n")


def parser_of(description: str | None, iterations: int) -> argparse.ArgumentParser:
    """Return a parser with the options of comparisons with Stable-Baselines3, which runs in a process of its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--stable-baselines3", type=Path, help=argparse.SUPPRESS)
    return parser


def runs_in(results: Path) -> list[dict[str, Any]]:
    """Return the runs that a result file holds."""
    runs: list[dict[str, Any]] = json.loads(results.read_text())["runs"] if results.exists() else []
    return runs


def with_run(runs: list[dict[str, Any]], run: dict[str, Any], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the runs with a new one, which replaces that with the same values of the keys."""
    return [other for other in runs if any(other[key] != run[key] for key in keys)] + [run]


def main() -> None:
    parser = parser_of(__doc__, iterations=25)
    parser.add_argument("--experiment", choices=["reacher", "half_cheetah"], default="reacher")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments, words = parser.parse_known_args()
    if arguments.stable_baselines3:
        run_stable_baselines3(arguments.stable_baselines3, words)
        return
    if words and arguments.output == RESULTS:
        parser.error(f"{' '.join(words)}: needs --output, since the results are those of the experiments as they are")
    runs = runs_in(arguments.output)
    for seed in arguments.seeds:
        for name in CONTENDERS:
            run = measure(name, arguments.experiment, arguments.iterations, seed, words)
            runs = with_run(runs, run, ("contender", "experiment", "seed"))
            speed = f"{run['steps_per_wall_second']:.0f} steps/s, {run['steps_per_cpu_second']:.0f} per CPU second"
            print(f"{arguments.experiment} seed {seed} {name}: return {run['returns'][-1]}, {speed}", flush=True)
            save(runs, arguments.output)


if __name__ == "__main__":
    main()
