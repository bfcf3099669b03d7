"""A Ray node dies with the run's processes on it: the outcome stays bit-identical, unless it was the only one."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster
from ray_head import ray_head
from small_runs import SMALL, TWO_WORKERS, Runs
from waiting import eventually, finish

pytestmark = [pytest.mark.integration, pytest.mark.slow]

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
    """The cluster's other processes live on and answer, so the run would wait for a new node."""
    with ray_head(tmp_path) as env:
        runs = Runs(tmp_path).served_by(prefect_api, **env)
        process = runs.start(*SMALL, "iterations=1000", f"run_root={runs.root}", "run_id=alone")
        committed = runs.root / "alone" / "checkpoints" / "iteration-000001"
        assert eventually(lambda: committed.exists() or process.poll() is not None, 200.0)
        head = f"RAY_AUTH_TOKEN_PATH={env['RAY_AUTH_TOKEN_PATH']}".encode()
        named = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet"]
        [raylet] = [each for each in named if head in Path(f"/proc/{each.pid}/environ").read_bytes()]
        raylet.kill()
        began = time.monotonic()
        output = finish(process, 120)
        assert time.monotonic() - began < 60.0
    assert process.returncode == 1
    assert output.splitlines()[-1].endswith("no node of the Ray cluster is alive; start Ray, then resume=alone")
