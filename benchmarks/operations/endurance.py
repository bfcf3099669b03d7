"""Two thousand iterations of a small job without a restart: does anything grow?

    python -m benchmarks.operations.endurance

The job is ``python -m flows.ppo experiment=reacher`` with few steps per iteration, seven task runs per iteration, and
its own Prefect server on SQLite. Every 25 iterations the script samples all its processes: resident memory by part,
open files, threads, processes, shared memory, the run folder and Prefect's database. Growth per 1,000 iterations is the
slope of a straight line through the second half of the samples. Memory must not grow by more than 2 %.

Prefect's database keeps rows for days, as ``RETENTION`` in ``embodyflow/stack/services.py`` says;
``benchmarks/operations/retention.py`` shows that its size stays bounded. The script writes
``benchmarks/results/endurance.json`` and ``docs/images/endurance.png``.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
from matplotlib.figure import Figure

from benchmarks.commands import ROOT, check_command, running
from embodyflow.stack.services import RETENTION

RESULTS, PICTURE = ROOT / "benchmarks/results/endurance.json", ROOT / "docs/images/endurance.png"
EVERY = 25  # iterations
MOST_GROWTH = 0.02  # fraction of memory per 1,000 iterations
JOB = [
    *("experiment=reacher", "rollout.envs_per_worker=2", "rollout.num_steps=60", "trainer.epochs=2"),
    *("critic.epochs=2", "trainer.num_minibatches=4", "pipeline.task_runs=node", "seed=0"),
]
PARTS = {"prefect.server": "Prefect server", "flows.ppo": "flow", "ray::": "workers"}
MARK = "EMBODYFLOW_ENDURANCE"


def part_of(process: psutil.Process) -> str:
    """Return the part of the run that a process belongs to; processes of Ray that are not workers are "Ray"."""
    words = " ".join(process.cmdline())
    return next((part for word, part in PARTS.items() if word in words), "Ray")


def processes(mark: str) -> list[psutil.Process]:
    """Return all processes with the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def size_of(folder: Path, pattern: str = "*") -> int:
    """Return the bytes of a folder's files, ignoring files that vanish meanwhile."""
    total = 0
    for path in folder.rglob(pattern):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def sample(home: Path, run: Path) -> dict[str, float]:
    """Return one sample of all processes and folders."""
    seen: Counter[str] = Counter()
    for process in processes(str(home)):
        try:
            with process.oneshot():
                resident = process.memory_info().rss / 1e6
                seen[f"resident MB, {part_of(process)}"] += resident
                seen["open files"] += process.num_fds()
                seen["threads"] += process.num_threads()
                seen["processes"] += 1
        except psutil.NoSuchProcess:
            continue
    seen["resident MB"] = sum(value for name, value in seen.items() if name.startswith("resident MB, "))
    seen["shared memory MB"] = size_of(Path("/dev/shm")) / 1e6
    seen["Prefect database MB"] = size_of(home, "prefect.db*") / 1e6
    seen["run folder MB"] = size_of(run) / 1e6
    return dict(seen)


def watch(iterations: int) -> list[dict[str, float]]:
    """Run the job; return the samples in the order of iterations."""
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        home, run = Path(folder, "home"), Path(folder, "runs", "run")
        env = os.environ | {"PREFECT_HOME": str(home), MARK: str(home)} | RETENTION
        env = {name: value for name, value in env.items() if name not in ("PREFECT_API_URL", "RAY_ADDRESS")}
        words = [*JOB, f"iterations={iterations}", f"run_root={run.parent}", f"run_id={run.name}"]
        command, log = [sys.executable, "-m", "flows.ppo", *words], Path(folder, "log")
        with running(command, log, env) as process:
            while process.poll() is None:
                done = num_lines(run / "metrics.jsonl")
                if done >= EVERY * (len(samples) + 1):
                    samples.append({"iteration": done, "time": time.time(), **sample(home, run)})
                    print(json.dumps({name: round(value, 1) for name, value in samples[-1].items()}), flush=True)
                time.sleep(0.5)
        check_command(command, log, process.returncode)
        assert not processes(str(home)), "processes are left behind"
    return samples


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def growths(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the final value of each quantity and its growth per 1,000 iterations, fitted to the second half."""
    half = samples[len(samples) // 2 :]
    x = np.array([each["iteration"] for each in half])
    found = {}
    for name in sorted(samples[-1].keys() - {"iteration", "time"}):
        values = [each.get(name, 0.0) for each in half]
        slope = float(np.polyfit(x, values, 1)[0]) * 1000
        found[name] = {"end": values[-1], "growth": slope, "growth_share": slope / max(statistics.mean(values), 1e-9)}
    return found


def draw(samples: list[dict[str, float]], path: Path) -> None:
    """Plot the samples."""
    names = ("resident MB", "open files", "processes", "Prefect database MB")
    figure = Figure(figsize=(2.9 * len(names), 2.8), dpi=110, layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        axis.plot([each["iteration"] for each in samples], [each[name] for each in samples])
        axis.set(title=name, xlabel="iteration", ylim=(0, None))
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000)
    arguments = parser.parse_args()
    samples = watch(arguments.iterations)
    growth = growths(samples)
    report = {"iterations": arguments.iterations, "per_1000_iterations": growth, "samples": samples}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    draw(samples, PICTURE)
    for name, facts in growth.items():
        print(f"{name:32} {facts['end']:10.1f} {facts['growth']:+10.2f} per 1,000 iterations")
    if growth["resident MB"]["growth_share"] > MOST_GROWTH:
        sys.exit("memory grows")


if __name__ == "__main__":
    main()
