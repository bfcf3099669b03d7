"""Seconds from the command to ready workers and to the first iteration, and which processes spend them.

``python -m benchmarks.orchestration.start --output benchmarks/results/start.json`` starts ``python -m flows.grpo`` and
a Prefect flow that only starts as many Ray actors with the same imports (:mod:`benchmarks.stand_ins.bare_start`), in
turns. Ours is stopped after its first iteration, the other one when its actors are ready. CPU seconds are those of all
living processes of the command when its workers are ready.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.commands import check_command, running
from benchmarks.report import write_report

OURS, PEER = "embodyflow", "bare libraries"
LIMIT_SECONDS = 300.0
PARTS = {
    "Prefect's server": ("uvicorn", "prefect.server", "guarded_server"),
    "Ray's services": ("gcs_server", "raylet", "log_monitor", "dashboard", "runtime_env_agent"),
    "Ray's workers": ("ray::", "default_worker.py"),
}
"""Words of the command lines of each part's processes; what has none of them is the flow's process and its watchers."""


def main() -> None:
    """Run the comparison and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--experiment", default="embodied")
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours, workers = start_ours(Path(folder), arguments.experiment)
            peer = start_peer(Path(folder), workers)
        rounds.append({OURS: ours, PEER: peer})
        print(f"round {number + 1}: {ours['seconds']:.1f} s, {PEER} {peer['seconds']:.1f} s")
    ratio = median(each[OURS]["seconds"] / each[PEER]["seconds"] for each in rounds)
    print(f"{OURS} takes {ratio:.2f} of the time of {PEER}")
    for part in [*PARTS, "flow"]:
        cpu = {name: median(each[name]["cpu_seconds"][part] for each in rounds) for name in (OURS, PEER)}
        print(f"  CPU s of {part}: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in cpu.items()))
    if arguments.output is not None:
        packages = ("embodyflow", "ray", "prefect", "torch", "tensordict")
        write_report(arguments.output, packages, rounds, experiment=arguments.experiment)


def start_ours(folder: Path, experiment: str) -> tuple[dict[str, Any], int]:
    """Start a run until its workers are ready; return its figures and the number of its workers."""
    command = [sys.executable, "-m", "flows.grpo", f"experiment={experiment}", f"run_root={folder}", "run_id=start"]
    record, metrics = folder / "start" / "processes.json", folder / "start" / "metrics.jsonl"
    figures = until_ready(command, folder / "ours.log", record, first_iteration=metrics)
    return figures, len(json.loads(record.read_text())) - 1


def start_peer(folder: Path, num_workers: int) -> dict[str, Any]:
    """Start the bare libraries until their actors are ready; return the figures."""
    ready = folder / "ready"
    command = [sys.executable, "-m", "benchmarks.stand_ins.bare_start", str(num_workers), str(ready)]
    return until_ready(command, folder / "peer.log", ready)


def until_ready(command: Sequence[str], log: Path, ready: Path, first_iteration: Path | None = None) -> dict[str, Any]:
    """Run a command until it writes files; return its wall-clock seconds and its CPU seconds by part.

    Args:
        command: The command.
        log: File for its output.
        ready: File that says that the workers are ready.
        first_iteration: File with the metrics of iterations; ``None`` ends the command before.

    Raises:
        SystemExit: The command ended before, or took too long.
    """
    started = time.perf_counter()

    def seconds_until(file: Path) -> float:
        while not (file.exists() and file.stat().st_size):
            if process.poll() is not None or time.perf_counter() - started > LIMIT_SECONDS:
                check_command(command, log, process.poll())
                raise SystemExit(f"{' '.join(command)}\nended before it wrote {file.name}")
            time.sleep(0.02)
        return time.perf_counter() - started

    with running(command, log) as process:
        figures: dict[str, Any] = {"seconds": seconds_until(ready), "cpu_seconds": cpu_seconds(process)}
        if first_iteration is not None:
            figures["seconds_to_first_iteration"] = seconds_until(first_iteration)
        return figures


def cpu_seconds(root: psutil.Process) -> dict[str, float]:
    """Return the CPU seconds of a process and its living descendants by part."""
    spent = dict.fromkeys([*PARTS, "flow"], 0.0)
    for process in [root, *root.children(recursive=True)]:
        try:
            words, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent[part_of(words)] += times.user + times.system
    return spent


def part_of(command: str) -> str:
    """Return the part of a start that a process with this command line belongs to."""
    return next((part for part, words in PARTS.items() if any(word in command for word in words)), "flow")


if __name__ == "__main__":
    main()
