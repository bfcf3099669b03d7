"""Random requeues of a Slurm job: does its run end with the weights of an undisturbed run?

    python -m benchmarks.operations.requeues

Needs Debian's packages slurmctld, slurmd and slurm-client, from which it starts a cluster of two nodes on this machine.
``deployments/slurm/train.sbatch`` trains SAC on both. At random moments the job is requeued in one of two ways, in
turns: Slurm signals its shell, as it does before the time limit, and the job requeues itself; or Slurm kills all of its
processes and requeues it, as at a preemption. The script counts the processes that are left before the job starts
again, and compares the weights of every iteration with those of an undisturbed run. Results go to
``benchmarks/results/requeues.json``.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, find_test_modules

find_test_modules()

from slurm import Slurm, is_installed, slurm  # noqa: E402
from small_runs import SMALL_SAC, Runs  # noqa: E402
from waiting import eventually  # noqa: E402

from benchmarks.operations.interruptions import has_same_weights, interrupt, report, train_undisturbed  # noqa: E402

RESULTS = ROOT / "benchmarks/results/requeues.json"
RUN_ID = "requeued"
SECONDS = (1.0, 45.0)
"""Bounds of the time between the start of a job and its requeue. About half of it is the start of Ray and Prefect."""
WAYS = {
    "signal": ("scancel", "--batch", "--signal=TERM"),  # as --signal=B:TERM@120 before the time limit
    "preemption": ("scontrol", "requeue"),  # as with PreemptMode=REQUEUE
}
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
START_SECONDS, STOP_SECONDS, RUN_SECONDS = 180.0, 180.0, 1800.0


class Job:
    """A job that trains until it is done, however often it is requeued.

    Args:
        cluster: The Slurm cluster.
        runs: Runs in a folder.
        iterations: Iterations of its run.
    """

    def __init__(self, cluster: Slurm, runs: Runs, iterations: int) -> None:
        self._cluster, self._runs, self._restarts = cluster, runs, 0
        self.log = runs.root.parent / "job.log"
        options = ("--parsable", "--nodes=2", "--cpus-per-task=2", f"--output={self.log}")
        words = (*SMALL_SAC, f"iterations={iterations}", "seed=1", f"run_root={runs.root}", f"run_id={RUN_ID}")
        command = ("sbatch", *options, "deployments/slurm/train.sbatch", "sac", *words)
        self._number = cluster.run(*command, env=runs.env, cwd=ROOT)

    def requeue(self, way: str, seconds: float) -> dict[str, Any] | None:
        """Requeue the running job after some seconds; return what was seen, or ``None`` if it ended before."""
        assert eventually(lambda: self.state() in {"RUNNING", *ENDED}, START_SECONDS), self.state()
        before = self._committed()
        if eventually(lambda: self.state() in ENDED, seconds):
            return None
        self._cluster.run(*WAYS[way], self._number)
        self._restarts += 1
        assert eventually(self._waits, STOP_SECONDS), self.log.read_text()[-4000:]
        left, after = len(self._runs.processes()), self._committed()
        self._cluster.start_soon(self._number)
        return {"way": way, "seconds": round(seconds, 1), "left": left, "iterations": [before, after]}

    def finish(self) -> None:
        """Wait for the end of the job; print the end of its log unless it is complete."""
        eventually(lambda: self.state() in ENDED, RUN_SECONDS)
        if self.state() != "COMPLETED":
            print(self.log.read_text()[-4000:], flush=True)

    def state(self) -> str:
        """Return Slurm's state of the job."""
        return self._cluster.job(self._number)["JobState"]

    def _waits(self) -> bool:
        found = self._cluster.job(self._number)
        return found["Restarts"] == str(self._restarts) and found["JobState"] == "PENDING"

    def _committed(self) -> int:
        """Return the newest iteration with a checkpoint."""
        found = sorted(self._runs.root.glob(f"{RUN_ID}/checkpoints/iteration-*"))
        return int(found[-1].name.rpartition("-")[2]) if found else 0


def watch(folder: Path, num_requeues: int, iterations: int, seed: int) -> dict[str, Any]:
    """Requeue one job, let it finish, and compare its run with an undisturbed one."""
    (folder / "slurm").mkdir()
    runs = Runs(folder)
    train_undisturbed(runs, iterations)
    with slurm(folder / "slurm") as cluster:
        job, ways = Job(cluster, runs, iterations), list(WAYS)
        seen = interrupt(lambda index, wait: job.requeue(ways[index % len(ways)], wait), num_requeues, SECONDS, seed)
        job.finish()
        return {
            "iterations": iterations,
            "state": job.state(),
            "same_weights": has_same_weights(runs, RUN_ID, runs, iterations),
            "left": len(runs.processes()),
            "requeues": seen,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requeues", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=1500, help="enough that the run outlasts the requeues")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    arguments = parser.parse_args()
    if not is_installed():
        sys.exit("needs Debian's packages slurmctld, slurmd and slurm-client")
    report(lambda folder: watch(folder, arguments.requeues, arguments.iterations, arguments.seed), arguments.out)


if __name__ == "__main__":
    main()
