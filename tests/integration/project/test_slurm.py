"""The job of ``deployments/slurm`` on a real Slurm cluster of two nodes: requeued jobs go on, cancelled ones end."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Slurm, is_installed, slurm
from small_runs import ROOT, SMALL, TWO_WORKERS, Runs
from waiting import eventually

from embodyflow.process.files.private_folder import remove_abandoned

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not is_installed(), reason="needs Debian's slurmctld, slurmd and slurm-client"),
]

WORDS = (TWO_WORKERS, "iterations=12")
RUN_SECONDS = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(cluster: Slurm, runs: Runs, run_id: str, *words: str) -> str:
    """Submit the template for a small run on both nodes; return the job's number."""
    options = ("--parsable", "--nodes=2", "--cpus-per-task=2", f"--output={runs.root.parent}/{run_id}.log")
    run = (*SMALL, f"run_root={runs.root}", f"run_id={run_id}", *words)
    return cluster.run("sbatch", *options, "deployments/slurm/train.sbatch", "grpo", *run, env=runs.env, cwd=ROOT)


def wait_for_commit(cluster: Slurm, runs: Runs, run_id: str, job: str, iteration: int) -> None:
    committed = runs.root / run_id / "checkpoints" / f"iteration-{iteration:06d}"
    log = runs.root.parent / f"{run_id}.log"
    over = ("FAILED", "COMPLETED", "CANCELLED")
    assert eventually(lambda: committed.exists() or cluster.job(job)["JobState"] in over, RUN_SECONDS)
    assert committed.exists(), log.read_text()[-4000:]


def start_again(cluster: Slurm, job: str, restarts: int) -> None:
    """Wait until a job is requeued and its processes have ended; start it soon."""

    def is_requeued() -> bool:
        found = cluster.job(job)
        return found["Restarts"] == str(restarts) and found["JobState"] == "PENDING"

    assert eventually(is_requeued, 120.0), cluster.job(job)
    cluster.start_soon(job)


def assert_nothing_is_left(runs: Runs, run_id: str) -> None:
    """Check that no process of a job is left; Ray's folders of killed nodes go with the next run of the user."""
    runs.assert_nothing_runs(30.0)
    remove_abandoned()
    folders = set(re.findall(r"/tmp/embodyflow-\w+", (runs.root.parent / f"{run_id}.log").read_text()))
    assert folders and not [each for each in folders if Path(each).exists()]


def test_a_job_is_requeued_before_its_time_limit_and_when_it_is_preempted(
    cluster: Slurm, tmp_path: Path, prefect_api: str
) -> None:
    Runs(tmp_path, prefect_api).run("undisturbed", *WORDS)
    runs = Runs(tmp_path)
    job = submit(cluster, runs, "requeued", *WORDS)
    wait_for_commit(cluster, runs, "requeued", job, 1)
    cluster.run("scancel", "--batch", "--signal=TERM", job)  # as --signal=B:TERM@120 before the time limit
    start_again(cluster, job, restarts=1)
    wait_for_commit(cluster, runs, "requeued", job, 2)
    cluster.run("scontrol", "requeue", job)  # as a preemption with PreemptMode=REQUEUE
    start_again(cluster, job, restarts=2)
    assert eventually(lambda: cluster.job(job)["JobState"] == "COMPLETED", RUN_SECONDS), cluster.job(job)
    log = (tmp_path / "requeued.log").read_text()
    assert "stopped; continue with resume=requeued" in log
    runs.assert_same_training("requeued", "undisturbed")
    assert runs.metrics("requeued") == runs.metrics("undisturbed")
    assert_nothing_is_left(runs, "requeued")


def test_a_cancelled_job_is_not_requeued(cluster: Slurm, tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    job = submit(cluster, runs, "cancelled", TWO_WORKERS, "iterations=1000")
    wait_for_commit(cluster, runs, "cancelled", job, 1)
    cluster.run("scancel", job)
    assert_nothing_is_left(runs, "cancelled")
    assert eventually(lambda: not cluster.run("squeue", "--noheader"), 60.0)
    assert cluster.job(job)["JobState"] == "CANCELLED"
