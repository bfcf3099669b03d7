"""A Ray node dies with the run's processes on it: the outcome stays bit-identical."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from small_runs import SMALL, TWO_WORKERS, Runs

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
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output[-4000:]
    here.assert_same_training("disturbed", "undisturbed")
    assert here.metrics("disturbed") == here.metrics("undisturbed")
