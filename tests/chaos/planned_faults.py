"""Planned faults of a run.

The plan is a JSON file, named by ``EMBODYFLOW_FAULTS``, with a list of faults, each of which happens once per run::

    {"iteration": 2, "node": "train_actor", "part": "trainer/0", "signal": "SIGKILL", "delay": 0.02}

``part`` names the process to signal, as in the run's ``processes.json``; with ``"below": true`` its first child process
is meant. A process outside the run is given by its ``pid``.
"""

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil


def plan_of_run() -> Path:
    """Return the path of the plan."""
    return Path(os.environ["EMBODYFLOW_FAULTS"])


def folder_of_run() -> Path:
    """Return the run's folder."""
    plan = plan_of_run()
    return plan.parent / "runs" / plan.stem


def number_of_arrival(place: str) -> int:
    """Return how many have come to a place before, in the whole run."""
    plan = plan_of_run()
    return next(number for number in itertools.count() if claim(plan.with_name(f"{plan.stem}-{place}-{number}")))


def claimed_faults(node: str, iteration: int) -> Iterator[dict[str, Any]]:
    """Yield the faults of a place that have not happened yet; they count as having happened."""
    plan = plan_of_run()
    for index, fault in enumerate(json.loads(plan.read_text())):
        if (fault["iteration"], fault["node"]) == (iteration, node) and claim(plan.with_name(f"{plan.name}.{index}")):
            yield fault


def claim(marker: Path) -> bool:
    """Create a file; return True if it did not exist."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def send_signal(fault: dict[str, Any], run_dir: Path) -> None:
    """Signal the process of a fault; return after its end if it is killed."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by an earlier fault, or just now
        process = _process_of(fault, run_dir)
        process.send_signal(signal.Signals[fault["signal"]])
        if fault["signal"] == "SIGKILL" and process.pid != os.getpid():
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)


def _process_of(fault: dict[str, Any], run_dir: Path) -> psutil.Process:
    if "pid" in fault:
        return psutil.Process(fault["pid"])
    pids = json.loads((run_dir / "processes.json").read_text())
    [pid] = [pid for name, pid in pids.items() if name == fault["part"] or name.startswith(f"{fault['part']}/")][:1]
    process = psutil.Process(pid)
    return process.children()[0] if fault.get("below") else process
