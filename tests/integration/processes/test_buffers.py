"""Buffers on three Ray nodes of one machine: rows cross nodes, buffers die, and no memory is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from support_path import SUPPORT_PATH
from waiting import eventually

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.metrics import to_floats
from embodyflow.data.plans.balance import balance
from embodyflow.data.plans.row_plan import RankInput, ShardRef, split_evenly
from embodyflow.data.ragged import Ragged
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import BufferFullError, ShardLostError, WorkerLostError
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import call_buffers, start_buffers

pytestmark = pytest.mark.integration
PATIENCE = 60.0  # seconds, generous because the machine may be busy
ROOT = Path(__file__).resolve().parents[3]

DRIVER = """
import os, sys, time
import numpy as np, ray
from embodyflow.config.buffer import BufferConfig
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import start_buffers
ray.init(address=sys.argv[1], log_to_driver=False, namespace="killed")
place = BufferClient(start_buffers("killed", BufferConfig())).put("1/node/0", {"uid": np.arange(1000)}).location
print(place.pid, os.readlink(f"/proc/{place.pid}/fd/{place.descriptor}"), flush=True)
time.sleep(600)
"""


@ray.remote(num_cpus=0)
class Rank:
    """A worker on one node."""

    def __init__(self, buffers: dict[str, Any]) -> None:
        self.client = BufferClient(buffers)

    def put(self, shard_id: str, first: int, num_rows: int) -> ShardRef:
        return self.client.put(shard_id, rows(first, num_rows))

    def relay(self, shard_id: str, part: RankInput) -> ShardRef:
        return self.client.put(shard_id, self.client.get(part))

    def uids(self, part: RankInput) -> list[int]:
        uids: list[int] = self.client.get(part)["uid"].tolist()
        return uids

    def metrics(self) -> dict[str, float]:
        return to_floats(self.client.metrics())


def rows(first: int, num_rows: int) -> Table:
    """Return rows whose values identify the row; the last three columns are user-defined."""
    uid = np.arange(first, first + num_rows)
    return {
        "uid": uid,
        "note": uid.astype(np.float32)[:, None] * [1.0, 0.5],
        "depth": (uid % 251).astype(np.uint8)[:, None, None] + np.zeros((1, 4, 4), np.uint8),
        "tokens": Ragged(np.repeat(uid, uid % 5), uid % 5),
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    started = set(psutil.Process().children(recursive=True))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    here = Path(__file__).parent  # Workers import this module, which imports others from tests/support.
    paths = {"PYTHONPATH": os.pathsep.join((str(here), SUPPORT_PATH))}
    ray.init(cluster.address, log_to_driver=False, namespace="test", runtime_env={"env_vars": paths})
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - started, timeout=PATIENCE)
    assert not alive


@pytest.fixture(scope="module")
def buffers(cluster: Cluster) -> dict[str, Any]:
    return start_buffers("buffers", BufferConfig())


@pytest.fixture(scope="module")
def ranks(buffers: dict[str, Any]) -> list[Any]:
    """One worker per node."""
    pins = [NodeAffinitySchedulingStrategy(node, soft=False) for node in buffers]
    return [Rank.options(scheduling_strategy=pin).remote(buffers) for pin in pins]


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE)


def test_each_nodes_buffer_holds_the_rows_that_were_put_there(ranks: list[Any], buffers: dict[str, Any]) -> None:
    shards = get([rank.put.remote(f"1/node/{index}", 10 * index, 10) for index, rank in enumerate(ranks)])
    assert len(buffers) == 3 and [shard.host for shard in shards] == list(buffers)
    assert get([buffer.num_shards.remote() for buffer in buffers.values()]) == [1, 1, 1]

    part = split_evenly(shards, 1)[0]
    assert get(ranks[0].uids.remote(part)) == list(range(30))
    metrics = get(ranks[0].metrics.remote())
    assert metrics == {"buffer/local_hits": 1, "buffer/remote_reads": 2}
    sent = [to_floats(get(buffer.metrics.remote()))["buffer/bytes_sent"] for buffer in buffers.values()]
    assert sent[0] == 0 and all(bytes_sent > 10 * 8 for bytes_sent in sent[1:])

    moved = balance(shards, np.ones(30), list(buffers))
    assert get([rank.uids.remote(part) for rank, part in zip(ranks, moved, strict=True)]) == [
        list(range(first, first + 10)) for first in (0, 10, 20)
    ]
    assert get([rank.metrics.remote() for rank in ranks]) == [{"buffer/local_hits": 1}] * 3  # no row crossed nodes


def test_every_column_is_intact_after_two_redistributions(ranks: list[Any], buffers: dict[str, Any]) -> None:
    shards = get([rank.put.remote(f"2/a/{index}", 7 * index, 7) for index, rank in enumerate(ranks)])
    parts = split_evenly(shards, 2)
    halves = get(
        [rank.relay.remote(f"2/b/{i}", part) for i, (rank, part) in enumerate(zip(ranks, parts, strict=False))]
    )
    lengths = np.random.default_rng(0).lognormal(size=21)
    parts = balance(halves, lengths, list(buffers))
    thirds = get([rank.relay.remote(f"2/c/{i}", part) for i, (rank, part) in enumerate(zip(ranks, parts, strict=True))])
    client = BufferClient(buffers)
    whole = [client.get_shard(shard) for shard in thirds]
    uids = np.concatenate([table["uid"] for table in whole])
    assert sorted(uids.tolist()) == list(range(21))
    for table in whole:
        expected = rows(0, 21)
        assert digest_of(table) == digest_of({name: column[table["uid"]] for name, column in expected.items()})
    assert get([buffer.free.remote("2/") for buffer in buffers.values()]) == [3, 3, 2]


def test_a_shard_outlives_the_worker_that_wrote_it(buffers: dict[str, Any]) -> None:
    worker = Rank.remote(buffers)
    shard = get(worker.put.remote("3/node/0", 0, 5))
    ray.kill(worker)
    deadline = time.monotonic() + 30
    with pytest.raises(ray.exceptions.ActorDiedError):  # Ray kills asynchronously
        while time.monotonic() < deadline:
            get(worker.metrics.remote())
    assert BufferClient(buffers).get_shard(shard)["uid"].tolist() == [0, 1, 2, 3, 4]


def test_a_writer_waits_for_room_and_fails_after_its_patience(tmp_path: Path, cluster: Cluster) -> None:
    config = BufferConfig(memory_gb=3e-4, spill_folder=str(tmp_path), patience=0.3)
    client = BufferClient(start_buffers("small", config))
    held = [client.get_shard(client.put(f"1/a/{rank}", {"uid": np.arange(12_000)})) for rank in (0, 1)]
    with pytest.raises(BufferFullError, match=r"no room for shard 1/a/2 .* raise cluster.buffer.memory_gb"):
        client.put("1/a/2", {"uid": np.arange(12_000)})
    held.clear()
    client.put("1/a/2", {"uid": np.arange(12_000)})
    assert os.listdir(tmp_path) == []  # spilled to an unnamed file


def test_a_killed_driver_leaves_no_memory_behind(cluster: Cluster) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DRIVER, cluster.address]
    driver = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid, segment = driver.stdout.readline().split(maxsplit=1)
    assert segment.strip() in open_files(int(pid))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert eventually(lambda: not psutil.pid_exists(int(pid)), PATIENCE), "the buffer still runs"
    users = [process.pid for process in psutil.process_iter() if segment.strip() in open_files(process.pid)]
    assert users == []
    assert not [name for name in os.listdir("/dev/shm") if "killed" in name]


def open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):  # the process has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the file was closed meanwhile
                found.append(os.readlink(link))
    return found


def test_reading_a_shard_of_a_dead_buffer_raises_shard_lost(ranks: list[Any], buffers: dict[str, Any]) -> None:
    shards = get([rank.put.remote(f"9/node/{index}", 10 * index, 10) for index, rank in enumerate(ranks)])
    victim = list(buffers)[1]
    os.kill(shards[1].location.pid, signal.SIGKILL)
    assert eventually(lambda: not psutil.pid_exists(shards[1].location.pid), PATIENCE), "the buffer still runs"
    part = split_evenly(shards, 1)[0]
    for reader in (ranks[0], ranks[1]):  # from another node, and on the buffer's own node
        with pytest.raises(ShardLostError) as caught:
            get(reader.uids.remote(part))
        assert (caught.value.shard_id, caught.value.node_id) == ("9/node/1", victim)
        assert "shard 9/node/1 is lost with the buffer of Ray node" in str(caught.value)
    assert get(ranks[0].uids.remote(split_evenly([shards[0], shards[2]], 1)[0])) == [*range(10), *range(20, 30)]
    shards[1] = get(ranks[1].put.remote("9/node/1", 10, 10))  # after a rerun of the pipeline node, into a new buffer
    assert get(ranks[0].uids.remote(split_evenly(shards, 1)[0])) == list(range(30))


def test_a_removed_ray_node_takes_its_buffer_with_it(cluster: Cluster, ranks: list[Any]) -> None:
    node = cluster.add_node(num_cpus=1)
    buffers = start_buffers("leaving", BufferConfig())
    stays = next(node_id for node_id in buffers if node_id != node.node_id)
    writer, reader = (
        Rank.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(buffers)
        for node_id in (node.node_id, stays)  # unpinned, the reader might also run on the removed node
    )
    shard = get(writer.put.remote("1/node/0", 0, 10))
    assert len(asyncio.run(call_buffers(buffers, "pid"))) == len(buffers) == 4
    pid = get(buffers[node.node_id].pid.remote())
    cluster.remove_node(node, allow_graceful=False)
    assert eventually(lambda: not psutil.pid_exists(pid), PATIENCE), "the buffer still runs"
    with pytest.raises(WorkerLostError, match="a buffer is gone with its Ray node"):
        asyncio.run(asyncio.wait_for(call_buffers(buffers, "metrics"), PATIENCE))
    with pytest.raises(ShardLostError):
        get(reader.uids.remote(split_evenly([shard], 1)[0]))
