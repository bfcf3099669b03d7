"""Forecasts of iteration time beside real runs, on this machine.

``python -m benchmarks.operations.forecast`` (an hour) makes small runs of a robot and of a language model at 1, 2 and 4
rollout workers and trainer ranks, synchronous and ahead, six of each shape. Then it forecasts each shape from the
records of one to three shapes. ``--runs FOLDER`` keeps the runs, and uses those that are there.

The same shape takes a fifth longer in one run than in another. So the repeats of all shapes take turns, and what is
measured is the median over repeats of the median over iterations.

Other work on the machine takes cores from a run. It is measured beside each run, and a forecast has the cores that
it left to the run on average. Nothing else of the run that it forecasts is known to it.
"""

import argparse
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchmarks.commands import ROOT, run_command
from benchmarks.report import write_report
from embodyflow.config.grouped import GroupedConfig
from embodyflow.forecast.candidates import placements
from embodyflow.forecast.forecast import forecast
from embodyflow.forecast.machine import Machine
from embodyflow.forecast.record import RunRecord, read_run, read_runs
from embodyflow.forecast.roofline import Assumptions, Target, on_devices
from embodyflow.forecast.scaling import changed, pooled, scaled, shape_of
from embodyflow.graph.planning.memory_estimate import ModelSize
from embodyflow.record.run_folder import RunFolder
from embodyflow.stack.services import num_cores

JOBS = {
    "embodied": (
        *("experiment=embodied", "warm_start=null", "evaluation.video=false", "evaluation.num_goals=4"),
        *("env.max_steps=40", "rollout.num_groups=8", "filter.drop_uniform=false"),
    ),
    "language": (
        "experiment=math",
        "warm_start=null",
        "evaluation.num_prompts=8",
        "rollout.num_groups=64",
        "filter.drop_uniform=false",
    ),
}
"""Keys of the runs of each job, all by GRPO."""
REPEATS = 6
RUNS = (
    *((1, 1, 0), (2, 2, 0), (2, 1, 0), (2, 1, 1), (4, 1, 0)),
    *((4, 4, 0), (4, 4, 1), (2, 4, 0), (1, 1, 1), (2, 2, 1)),
)
"""Rollout workers, trainer ranks and staleness of the runs."""
SOURCES = {
    "from_one": ((1, 1, 0),),
    "from_two": ((1, 1, 0), (2, 2, 0)),
    "from_three": ((1, 1, 0), (2, 2, 0), (4, 4, 0)),
}
"""Shapes of the runs that each forecast is made from."""
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
MODEL = ModelSize(7e9)
RESULTS = ROOT / "benchmarks" / "results" / "forecast.json"
AHEAD = {
    ("embodied", 1): ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal"),
    ("language", 1): ("rollout.max_staleness=1",),
}
ITERATIONS = 8
SECONDS_BETWEEN_SAMPLES = 0.5
MARK = "EMBODYFLOW_FORECAST_RUN"
"""Environment variable that the processes of a run inherit."""


def words_of(job: str, workers: int, ranks: int, staleness: int) -> tuple[str, ...]:
    """Return the keys of a run beside those of its job."""
    return (f"rollout.num_workers={workers}", f"trainer.num_ranks={ranks}", *AHEAD.get((job, staleness), ()))


def name_of(job: str, workers: int, ranks: int, staleness: int) -> str:
    """Return the name of a run."""
    return f"{job}-{workers}-{ranks}-{staleness}"


def make_runs(folder: Path) -> None:
    """Make the runs that a folder lacks."""
    for shape, job in product(RUNS, JOBS):
        name = name_of(job, *shape)
        load = folder / f"{name}.json"
        if load.exists():
            continue
        shutil.rmtree(folder / name, ignore_errors=True)  # a run that was stopped
        to = (f"run_root={folder}", f"run_id={name}", f"iterations={ITERATIONS}")
        made = (*JOBS[job], *words_of(job, *shape), *to)
        os.environ[MARK] = name
        with observed(name) as cores:
            run_command(["python", "-m", "flows.grpo", *made], folder / f"{name}.log", timeout=400)
        load.write_text(json.dumps({"cores": cores}))
        print(name, flush=True)


@contextmanager
def observed(name: str) -> Iterator[list[tuple[float, ...]]]:
    """Yield a list that takes a wall clock, and the cores that all processes and that the run's use, by samples."""
    found: list[tuple[float, ...]] = []
    over = threading.Event()
    observer = threading.Thread(target=_observe, args=(found, over, name))
    observer.start()
    try:
        yield found
    finally:
        over.set()
        observer.join()


def _observe(found: list[tuple[float, ...]], over: threading.Event, name: str) -> None:
    known: dict[int, bool] = {}
    before = _busy_seconds(name, known)
    while not over.wait(SECONDS_BETWEEN_SAMPLES):
        now = _busy_seconds(name, known)
        ours = sum(used - before[2].get(pid, 0.0) for pid, used in now[2].items())
        seconds = now[0] - before[0]
        found.append((round(time.time(), 2), round((now[1] - before[1]) / seconds, 3), round(ours / seconds, 3)))
        before = now


def _busy_seconds(name: str, known: dict[int, bool]) -> tuple[float, float, dict[int, float]]:
    """Return the time, the CPU seconds of the machine so far, and those of the run's processes by pid."""
    ours = {}
    for process in psutil.process_iter():
        try:
            if process.pid not in known:
                known[process.pid] = process.environ().get(MARK) == name
            if known[process.pid]:
                used = process.cpu_times()
                ours[process.pid] = used.user + used.system
        except psutil.Error:  # it has ended, or belongs to another user
            continue
    cores = psutil.cpu_times()
    return time.perf_counter(), cores.user + cores.nice + cores.system, ours


def cores_of_others(folder: Path, record: RunRecord) -> float:
    """Return the cores that other processes than a run's used, as a mean from its first to its last iteration."""
    ends = [
        _seconds_of_day(match[1])
        for line in (folder / f"{record.name}.log").read_text().splitlines()
        if (match := re.search(r"^([\d:.]+) .* iteration +\d+/\d+ ", line))
    ]
    samples = json.loads((folder / f"{record.name}.json").read_text())["cores"]
    within = [sample for sample in samples if ends[0] <= _of_day(sample[0]) <= ends[-1]]
    return max(fmean(busy - ours for _, busy, ours in within), 0.0)


def _seconds_of_day(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def _of_day(moment: float) -> float:
    local = time.localtime(moment)
    return 3600 * local.tm_hour + 60 * local.tm_min + local.tm_sec + moment % 1


def compare(folders: Sequence[Path], job: str) -> list[dict[str, Any]]:
    """Return a row for each shape of a job, of which each folder has a run.

    ``measured`` are wall seconds, as a median over repeats and with their range. Beside them are forecasts from other
    runs, with the cores that others left.
    """
    runs = {shape: [RunFolder(folder / name_of(job, *shape)) for folder in folders] for shape in RUNS}
    sources = {
        label: pooled(read_runs([run for shape in shapes for run in runs[shape]], Machine(num_cores())))
        for label, shapes in SOURCES.items()
    }
    rows = []
    for shape, repeats in runs.items():
        records = [read_run(run) for run in repeats]
        others = fmean(map(cores_of_others, folders, records))
        seconds = sorted(median(record.measured) for record in records)
        measured = median(seconds)
        row: dict[str, Any] = {
            **{"job": job, "workers": shape[0], "ranks": shape[1], "staleness": shape[2]},
            **{"cores_of_others": round(others, 2), "measured": round(measured, 3)},
            "repeats": [round(each, 3) for each in seconds],
        }
        for label, (first, *further) in sources.items():
            config, machine = records[0].config, replace(first.machine, cores=num_cores() - others)
            found = forecast(first.graph, scaled(first, config, further), shape_of(config), machine=machine)
            row[label] = {
                **{"seconds": round(found.seconds, 3), "low": round(found.low, 3), "high": round(found.high, 3)},
                "error": round(found.seconds / measured - 1, 3),
            }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def on_gpus(record: RunRecord) -> list[dict[str, Any]]:
    """Return the fastest way of each order to run a language job on 8 to 1,024 GPUs, by formulas."""
    config = changed(record.config, {"rollout.num_groups": "1024"})
    assert isinstance(config, GroupedConfig)
    fastest: dict[tuple[int, str], dict[str, Any]] = {}
    for number in GPUS:
        target = Target(number // 8, 32, MODEL, MODEL, assumptions=Assumptions(response_tokens=2048))
        for shape in placements(config, number, 1):
            samples = on_devices(record, config, target, shape)
            found = forecast(record.graph, samples, shape, simulations=3)
            order = "in turns" if shape.takes_turns else "streaming" if shape.num_groups else "whole iterations"
            row = {"gpus": number, "order": order, "workers": shape.workers, "ranks": shape.ranks}
            row |= {"staleness": shape.staleness, "seconds": round(found.seconds, 2), "idle": found.idle}
            before = fastest.setdefault((number, order), row)
            if found.seconds < before["seconds"] - 0.01:
                fastest[number, order] = row
    return list(fastest.values())


def main() -> None:
    """Make the runs, forecast them and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    parser.add_argument("--only-compare", action="store_true", help="forecast the runs that are there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.runs or Path(temporary)
        folders = [folder / str(repeat) for repeat in range(1, REPEATS + 1)]
        for each in folders if not arguments.only_compare else ():
            each.mkdir(parents=True, exist_ok=True)
            make_runs(each)
        rows = [row for job in JOBS for row in compare(folders, job)]
        devices = on_gpus(read_run(RunFolder(folders[0] / name_of("language", 1, 1, 0))))
    write_report(RESULTS, ("torch", "ray", "prefect"), rows, iterations=ITERATIONS, jobs=JOBS, devices=devices)


if __name__ == "__main__":
    main()
