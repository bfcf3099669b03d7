"""Random evictions of the pods of one flow run: does it end with the weights of an undisturbed run?

    python -m benchmarks.operations.evictions

A deployment's flow run trains SAC. Its pod is the command that a job of a work pool runs. All processes of a pod are
killed at a random moment, and the next pod starts at once. Before every fourth eviction the next pod starts beside the
first, as a cluster does that has lost sight of a pod, and must wait. The script counts the processes that are left
after each eviction, and compares the weights of every iteration with those of an undisturbed run. Results go to
``benchmarks/results/evictions.json``.
"""

import argparse
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.commands import ROOT, find_test_modules

find_test_modules()

from local_stack import Project  # noqa: E402
from pods import FlowRun, evict  # noqa: E402
from servers import prefect_server  # noqa: E402
from small_runs import SMALL_SAC, Runs  # noqa: E402
from waiting import eventually  # noqa: E402

from benchmarks.operations.interruptions import has_same_weights, interrupt, report, train_undisturbed  # noqa: E402

RESULTS = ROOT / "benchmarks/results/evictions.json"
SECONDS = (1.0, 40.0)
"""Bounds of the time between the start of a pod and its eviction. About half of it is the start of Prefect and Ray."""
OVERLAP_EVERY = 4
"""Number of evictions of which one comes after the start of the next pod."""
OVERLAP_SECONDS = 120.0
WAITS = "another process executes this flow run"
"""Part of the line that a pod logs while another one is at work."""


class Pods:
    """The pods of one flow run, one after the other.

    Args:
        flow_run: The flow run.
        project: Project that the pods run in.
        folder: Folder of the run.
        logs: Folder for the output of the pods.
    """

    def __init__(self, flow_run: FlowRun, project: Project, folder: Path, logs: Path) -> None:
        self._flow_run, self._project, self._folder, self._logs = flow_run, project, folder, logs
        self._number = 0
        self._pod = self._start()

    def evict(self, seconds: float, *, overlaps: bool) -> dict[str, Any] | None:
        """Evict the pod after some seconds; return what was seen, or ``None`` if it ended before.

        Args:
            seconds: Seconds from now.
            overlaps: Whether the next pod starts before the eviction, and not after it.
        """
        before, pod = self._committed(), self._pod
        try:
            pod.wait(seconds)
            return None
        except subprocess.TimeoutExpired:
            pass
        if overlaps:
            self._pod = self._start()
            assert eventually(lambda: WAITS in self.log().read_text(), OVERLAP_SECONDS), self.log().read_text()
            waited = len(psutil.Process(self._pod.pid).children(recursive=True)) + 1
        number, state = len(evict(pod)), self._flow_run.state()
        left = len(self._project.processes()) - (waited if overlaps else 0)
        if not overlaps:
            self._pod = self._start()
        seen = {"seconds": round(seconds, 1), "overlaps": overlaps, "processes": number, "left": left, "state": state}
        return seen | {"iterations": [before, self._committed()]}

    def finish(self) -> None:
        """Wait for the end of the last pod."""
        assert self._pod.wait() == 0, self.log().read_text()

    def log(self) -> Path:
        """Return the file with the output of the newest pod."""
        return self._logs / f"pod-{self._number}.log"

    def _start(self) -> subprocess.Popen[str]:
        self._number += 1
        with self.log().open("w") as output:
            return self._flow_run.start_pod(output)

    def _committed(self) -> int:
        """Return the newest iteration with a checkpoint."""
        found = sorted(self._folder.glob("checkpoints/iteration-*"))
        return int(found[-1].name.rpartition("-")[2]) if found else 0


def watch(folder: Path, num_evictions: int, iterations: int, seed: int) -> dict[str, Any]:
    """Evict the pods of one flow run, let the last one finish, and compare the run with an undisturbed one."""
    with prefect_server(folder) as api_url:
        runs = Runs(folder, api_url)
        train_undisturbed(runs, iterations)
        project = Project(folder / "project", trains=True)
        flow_run = FlowRun(project, api_url, "evicted", iterations, "sac/pendulum", SMALL_SAC[1:])
        pods = Pods(flow_run, project, project.root / "runs" / "evicted", folder)

        def evict_once(index: int, wait: float) -> dict[str, Any] | None:
            return pods.evict(wait, overlaps=(index + 1) % OVERLAP_EVERY == 0)

        seen = interrupt(evict_once, num_evictions, SECONDS, seed)
        pods.finish()
        return {
            "iterations": iterations,
            "state": flow_run.state(),
            "same_weights": has_same_weights(Runs(project.root), "evicted", runs, iterations),
            "left": project.processes(),
            "evictions": seen,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evictions", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=1700, help="enough that the run outlasts the evictions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    arguments = parser.parse_args()
    report(lambda folder: watch(folder, arguments.evictions, arguments.iterations, arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
