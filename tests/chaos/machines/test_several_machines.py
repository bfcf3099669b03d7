"""A run whose ranks, rollout workers and buffers are on several machines gives the weights of one machine."""

from pathlib import Path

import pytest
import slow_link
from network import Network
from ray_machines import SPREAD, TWO_OF_EACH, RayMachines, ray_machines
from slow_link import SLOW
from small_runs import Runs

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


def run_on(cluster: RayMachines, runs: Runs, run_id: str) -> list[set[str]]:
    """Run on the head of a cluster; return the roles on each machine."""
    there = runs.on(cluster.nodes[0].machine, **cluster.environment)
    process = there.begin(run_id, *TWO_OF_EACH)
    there.wait_for_commit(run_id, process)
    parts = [cluster.parts(node, there.root / run_id) for node in cluster.nodes]
    there.end(process)
    return [{part.partition("/")[0] for part in each} for each in parts]


def test_two_machines_give_the_weights_of_one(network: Network, runs: Runs, tmp_path: Path) -> None:
    with ray_machines(tmp_path, network, [2, 2], **SPREAD) as cluster:
        roles = run_on(cluster, runs, "two")
    assert roles == [{"trainer", "rollout", "buffer", "driver"}, {"trainer", "rollout", "buffer"}]
    runs.assert_same_training("two", "alone")
    assert sum(record.get("perf/buffer/bytes_sent", 0.0) for record in runs.records("two")) > 0


def test_two_machines_with_a_slow_link_between_them_give_the_weights_of_one(
    network: Network, runs: Runs, tmp_path: Path
) -> None:
    if why := slow_link.missing():
        pytest.skip(why)
    with ray_machines(tmp_path, network, [2], **SPREAD) as cluster:
        link = cluster.add(2, SLOW).machine.link
        roles = run_on(cluster, runs, "slow")
    assert roles[1] == {"trainer", "rollout", "buffer"}
    assert link is not None and link.close().lost > 0
    runs.assert_same_training("slow", "alone")
