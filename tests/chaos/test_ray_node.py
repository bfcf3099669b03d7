"""A Ray node dies with the run's processes on it: the outcome stays bit-identical, unless it was the only one."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_stack import post
from ray.cluster_utils import Cluster
from ray_head import ray_head
from small_runs import SMALL, TWO_WORKERS, Runs
from waiting import eventually, finish

from embodyflow.orchestration.watchers.orphans import marked_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = (TWO_WORKERS, "iterations=3")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head without CPUs, and two nodes that each have enough CPUs for all workers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=3)
    yield cluster
    cluster.shutdown()


@pytest.mark.parametrize("index", [0, 1])
def test_a_run_survives_a_ray_node(cluster: Cluster, index: int, tmp_path: Path, prefect_api: str) -> None:
    here = Runs(tmp_path, prefect_api)
    here.run("undisturbed", *WORDS)
    there = here.served_by(prefect_api, RAY_ADDRESS=cluster.address)
    process = there.start(*SMALL, *WORDS, f"run_root={there.root}", "run_id=disturbed")
    checkpoint = there.root / "disturbed" / "checkpoints" / "iteration-000001"
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    cluster.remove_node(list(cluster.worker_nodes)[index], allow_graceful=False)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    here.assert_same_training("disturbed", "undisturbed")
    assert here.metrics("disturbed") == here.metrics("undisturbed")


def test_a_run_whose_only_ray_node_dies_ends_with_the_command_to_resume(tmp_path: Path, prefect_api: str) -> None:
    """``ray start`` then ends the head, and Ray would abort the run's process after 60 s, without such a line."""
    with ray_head(tmp_path) as env:
        runs = Runs(tmp_path).served_by(prefect_api, **env)
        process = start(runs, "alone")
        mark = "RAY_AUTH_TOKEN_PATH", env["RAY_AUTH_TOKEN_PATH"]
        kill_raylet(mark)
        line = last_line(process)
        assert line == f"the head of the Ray cluster at {env['RAY_ADDRESS']} is gone; start Ray, then resume=alone"
        assert_nothing_is_left(runs, mark, "alone")


def test_a_run_whose_own_ray_node_dies_ends_with_the_command_to_resume(tmp_path: Path, prefect_api: str) -> None:
    """The head lives on and answers, so the run would wait for another node. Ray notices a dead node after 15 s."""
    runs = Runs(tmp_path, prefect_api)
    process = start(runs, "own")
    mark = "EMBODYFLOW_TEST", runs.env["EMBODYFLOW_TEST"]
    kill_raylet(mark)
    assert last_line(process) == "no node of the Ray cluster is alive; start Ray, then resume=own"
    assert_nothing_is_left(runs, mark, "own")


def start(runs: Runs, run_id: str) -> subprocess.Popen[str]:
    """Start a run of many iterations and wait for its first commit."""
    process = runs.start(*SMALL, "iterations=1000", f"run_root={runs.root}", f"run_id={run_id}")
    committed = runs.root / run_id / "checkpoints" / "iteration-000001"
    assert eventually(lambda: committed.exists() or process.poll() is not None, 600.0)
    return process


def kill_raylet(mark: tuple[str, str]) -> None:
    [raylet] = [each for each in marked_processes(*mark) if each.name() == "raylet"]
    raylet.kill()


def last_line(process: subprocess.Popen[str]) -> str:
    """Return the last line of a run that ends before Ray would abort its process."""
    began = time.monotonic()
    output = finish(process, 120)
    assert time.monotonic() - began < 60.0, output[-4000:]
    assert process.returncode == 1, output[-4000:]
    return output.splitlines()[-1]


def assert_nothing_is_left(runs: Runs, mark: tuple[str, str], run_id: str) -> None:
    """Check that a run's flow runs are closed, and that it and its cluster left no process."""
    of_run = {"flow_runs": {"name": {"any_": [run_id]}}}
    [flow_run] = post(f"{runs.env['PREFECT_API_URL']}/flow_runs/filter", of_run)
    assert flow_run["state_type"] == "FAILED"
    within = {"parent_flow_run_id": {"any_": [flow_run["id"]]}, "state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    assert post(f"{runs.env['PREFECT_API_URL']}/flow_runs/filter", {"flow_runs": within}) == []
    runs.assert_nothing_runs(15.0)
    assert eventually(lambda: not marked_processes(*mark), 15.0), [each.cmdline() for each in marked_processes(*mark)]
