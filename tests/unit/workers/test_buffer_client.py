"""A worker's buffer client with real segments and buffer processes, without Ray."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from waiting import eventually

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.parts import Part, in_parts, outline
from embodyflow.data.plans.row_plan import Location, RankInput, Slice, WeightsRef
from embodyflow.data.published_weights import PublishedWeights
from embodyflow.workers.local_calls import LocalCaller, serve
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.segments import map_content
from embodyflow.workers.rows.shard_store import ShardStore


def answer(connection: Any) -> None:
    """A buffer's process."""
    store = ShardStore(BufferConfig(memory_gb=0.01))

    async def allocate(*arguments: Any) -> Location | None:
        return store.allocate(*arguments, asyncio.current_task())

    async def commit(*arguments: Any) -> None:
        store.commit(*arguments)

    async def free(*prefixes: str) -> None:
        store.free(*prefixes)

    async def main() -> None:
        server = await serve({"allocate": allocate, "commit": commit, "free": free})
        connection.send(server.address)
        await asyncio.sleep(600)

    asyncio.run(main())


@contextmanager
def buffer() -> Iterator[bytes]:
    """Start one and yield its address; kill it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def is_mapped(inode: int, permissions: str = "") -> bool:
    entries = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(entry[4] == str(inode) and entry[1].startswith(permissions) for entry in entries)


def is_kept_by_reader(inode: int) -> bool:
    return is_mapped(inode, "r--s")


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Addresses of the buffers that have been started; clients connect to the last one."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr(ray, "get", lambda answer: answer)
    return []


def client_of(addresses: list[bytes], kind: type[BufferClient] = BufferClient) -> Any:
    handle = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: addresses[-1]))
    return kind({"here": SimpleNamespace(address=handle)})


def inode_of(location: Location) -> int:
    return os.stat(f"/proc/{location.pid}/fd/{location.descriptor}").st_ino


def test_a_dead_buffers_memory_is_released_once_its_successor_is_written_to(addresses: list[bytes]) -> None:
    client = client_of(addresses)

    def put() -> int:
        inode = inode_of(client.put("1/node/0", {"uid": np.arange(10)}).location)
        assert is_mapped(inode)
        return inode

    with buffer() as address:
        addresses.append(address)
        first, second = put(), put()
        assert first != second and is_mapped(first), "it is kept for the next time"
    with buffer() as address:
        addresses.append(address)
        third = put()
    assert not is_mapped(first) and not is_mapped(second) and is_mapped(third)


def test_joined_rows_are_copied_from_pages_that_stay_mapped_and_are_no_reason_to_keep_a_segment(
    addresses: list[bytes],
) -> None:
    writer, reader = client_of(addresses), client_of(addresses)

    def put_and_read(first: int) -> tuple[set[int], Any]:
        shards = [
            writer.put(f"{first}/node/{rank}", {"uid": np.arange(first + 100 * rank, first + 100 * rank + 100)})
            for rank in range(2)
        ]
        table = reader.get(RankInput((Slice(shards[0], 90, 100), Slice(shards[1], 0, 5)), 0, 15))
        writer._call("free", f"{first}/")
        return {inode_of(shard.location) for shard in shards}, table["uid"]

    with buffer() as address:
        addresses.append(address)
        inodes, first = put_and_read(0)
        assert first.tolist() == [*range(90, 100), *range(100, 105)] and first.flags.writeable
        assert all(map(is_kept_by_reader, inodes))
        again, second = put_and_read(1000)
        assert again == inodes, "the buffer uses the segments again, although they are mapped"
        assert second.tolist() == [*range(1090, 1105)] and first.tolist() == [*range(90, 105)]
    with buffer() as address:
        addresses.append(address)
        others, third = put_and_read(2000)
    assert third.tolist() == [*range(2090, 2105)]
    assert not any(map(is_mapped, inodes)), "they would keep the memory of the dead buffer"
    assert all(map(is_kept_by_reader, others))


def test_memory_of_an_interrupted_thread_goes_to_others() -> None:
    with buffer() as address:
        interrupted, other = LocalCaller(address), LocalCaller(address)
        assert interrupted.call("allocate", "1/node/0", 6_000_000) is not None
        assert other.call("allocate", "1/node/1", 6_000_000) is None
        del interrupted  # closes its connection
        assert eventually(lambda: other.call("allocate", "1/node/1", 6_000_000) is not None)


WEIGHTS = {"first": np.arange(700_000, dtype=np.float32).reshape(1, 700, 1000), "last": np.full((1, 3), 5)}
OUTLINES = {name: outline(array.shape, array.dtype) for name, array in WEIGHTS.items()}


def parts(before_the_last: Any = None) -> Iterator[Part]:
    """Yield the weights in two parts each; call a function before the last one."""
    for name, array in WEIGHTS.items():
        flat = array.reshape(-1)
        for part in (Part(name, 0, flat[:2]), Part(name, 2, flat[2:])):
            if name == "last" and part.start and before_the_last is not None:
                before_the_last()
            yield part


class Watched(BufferClient):
    """Knows where it was told to write."""

    def __init__(self, buffers: Any) -> None:
        super().__init__(buffers)
        self.locations: list[Location] = []

    def _call(self, method: str, *arguments: Any) -> Any:
        answer = super()._call(method, *arguments)
        if method == "allocate":
            self.locations.append(answer)
        return answer


def assert_there(client: BufferClient, shard: Any) -> None:
    rows = client.get_shard(shard)
    assert list(rows) == list(WEIGHTS) and all(np.array_equal(rows[name], WEIGHTS[name]) for name in WEIGHTS)


def test_a_shard_in_parts_is_the_same_as_a_whole_one_and_the_writer_maps_none_of_it(addresses: list[bytes]) -> None:
    client = client_of(addresses)
    with buffer() as address:
        addresses.append(address)
        shard = client.put_in_parts("weights/1/0", OUTLINES, parts())
        assert not is_mapped(inode_of(shard.location))
        assert client.take_traffic()[1] > 2_800_000
        whole = client.put("weights/2/0", WEIGHTS)
        one, other = map_content(shard.location), map_content(whole.location)
        assert one[8:] == other[8:]
        assert_there(client, shard)


def test_a_shard_whose_parts_fail_is_not_taken_for_whole_and_leaves_its_room(addresses: list[bytes]) -> None:
    """The buffer has room for three such shards."""
    client = client_of(addresses, Watched)

    def fail() -> None:
        assert map_content(client.locations[-1]) is None
        raise LookupError("a rank is lost")

    with buffer() as address:
        addresses.append(address)
        for _ in range(5):
            with pytest.raises(LookupError, match="a rank is lost"):
                client.put_in_parts("weights/1/0", OUTLINES, parts(fail))
        assert_there(client, client.put_in_parts("weights/1/0", OUTLINES, parts()))


def test_a_buffer_that_dies_in_the_middle_leaves_the_parts_to_its_successor(addresses: list[bytes]) -> None:
    client = client_of(addresses)
    with buffer() as successor, ExitStack() as first:
        addresses.append(first.enter_context(buffer()))

        def die() -> None:
            first.close()
            addresses.append(successor)

        assert_there(client, client.put_in_parts("weights/1/0", OUTLINES, parts(die)))


def test_a_writer_that_dies_in_the_middle_leaves_nothing(addresses: list[bytes]) -> None:
    files = set(os.listdir("/dev/shm"))
    with buffer() as address:
        addresses.append(address)
        writer = multiprocessing.get_context("fork").Process(target=die_while_writing, args=(addresses,))
        writer.start()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        other = LocalCaller(address)
        assert eventually(lambda: other.call("allocate", "1/node/1", 8_000_000) is not None)
    assert set(os.listdir("/dev/shm")) <= files


def die_while_writing(addresses: list[bytes]) -> None:
    client_of(addresses).put_in_parts("weights/1/0", OUTLINES, parts(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def test_weights_take_up_memory_only_while_they_are_read(addresses: list[bytes]) -> None:
    client, weights = client_of(addresses), {f"weight{n}": np.full((1, 1000, 500), n, np.float32) for n in range(4)}
    weights["count"] = np.array([7])
    with buffer() as address:
        addresses.append(address)
        shard = client.put_in_parts("weights/1/0", weights, in_parts(weights))
        read = client.get_weights(WeightsRef(shard))
        for name, array in read.items():
            assert array.shape == weights[name].shape[1:] and np.array_equal(array, weights[name][0])
            assert resident_bytes(inode_of(shard.location)) < 3_000_000, "of eight million"
        assert (read["weight1"] == 1).all(), "it can be read again"


def test_weights_that_versions_share_are_read_once_and_outlive_their_shard(addresses: list[bytes]) -> None:
    client = client_of(addresses)
    shared, own = {"frozen": np.arange(6.0).reshape(1, 2, 3)}, {"trained": np.zeros((1, 2))}
    with buffer() as address:
        addresses.append(address)
        base = client.put("weights/shared/abc/0", shared)
        first, second = (
            client.get_weights(WeightsRef(client.put(f"weights/{version}/0", own), base)) for version in (1, 2)
        )
        assert isinstance(first, PublishedWeights) and isinstance(second, PublishedWeights)
        assert dict(second).keys() == {"trained", "frozen"} and len(second) == 2
        assert np.array_equal(second["frozen"], shared["frozen"][0]) and np.array_equal(second["trained"], [0, 0])
        assert second.views["frozen"] is first.views["frozen"]
        caller = LocalCaller(address)
        caller.call("free", "weights/")
        client.put("weights/3/0", {"trained": np.ones((1, 2, 3))})
        assert np.array_equal(first.views["frozen"], shared["frozen"][0]), "nothing is written over it"
        other = client.put("weights/shared/def/0", {"frozen": 1 + shared["frozen"]})
        third = client.get_weights(WeightsRef(client.put("weights/4/0", own), other))
        assert third["frozen"][0, 0] == 1


def resident_bytes(inode: int) -> int:
    """Return the bytes that this process's mappings of a file take up."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            inside = fields[4] == str(inode)
        elif inside and fields[0] == "Rss:":
            size += int(fields[1]) * 1024
    return size


def test_columns_may_be_parts_themselves(addresses: list[bytes]) -> None:
    client = client_of(addresses)
    with buffer() as address:
        addresses.append(address)
        assert_there(client, client.put_in_parts("weights/1/0", OUTLINES, in_parts(WEIGHTS)))
