"""A Ray node joins during a run and another one is drained: the workers move, and the weights stay the same."""

import signal
from pathlib import Path

import pytest
from network import Network
from ray_machines import SPREAD, TWO_OF_EACH, ray_machines
from small_runs import Runs
from waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("in_time", [True, False], ids=["in-time", "too-late"])
def test_a_drained_node_is_left_for_one_that_has_joined(
    network: Network, runs: Runs, tmp_path: Path, in_time: bool
) -> None:
    """If its machine loses its power at once, the iteration is retried on the others."""
    run_id = "drained" if in_time else "gone"
    with ray_machines(tmp_path, network, [0, 2, 2], **SPREAD) as cluster:
        there = runs.on(cluster.nodes[0].machine, **cluster.environment)
        process = there.begin(run_id, *TWO_OF_EACH)
        there.wait_for_commit(run_id, process)
        process.send_signal(signal.SIGSTOP)  # so that the run is not over before the cluster has changed
        drained, joined = cluster.nodes[2], cluster.add(2)
        assert {"buffer"} < {part.partition("/")[0] for part in cluster.parts(drained, there.root / run_id)}
        cluster.drain(drained, 600)
        if not in_time:
            drained.machine.lose_power()
        process.send_signal(signal.SIGCONT)
        assert eventually(lambda: cluster.parts(joined, there.root / run_id) or process.poll() is not None, 400.0)
        if in_time:  # Ray ends a drained node once nothing is left on it
            assert eventually(lambda: drained.machine.address not in cluster.node_ids(), 60.0)
        moved = {part.partition("/")[0] for part in cluster.parts(joined, there.root / run_id)}
        output = there.end(process)
    assert {"trainer", "rollout"} & moved
    assert ("failed and is retried" in output) != in_time, output[-4000:]
    runs.assert_same_training(run_id, "alone")
