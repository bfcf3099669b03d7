"""The shard store with real segments, in this process and in others, without Ray."""

import multiprocessing
import os
import signal
import socket
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.metrics import to_floats
from embodyflow.data.plans.row_plan import Location
from embodyflow.data.table_packing import Packing, unpack
from embodyflow.data.tables import Table
from embodyflow.errors import BufferFullError, ConfigError
from embodyflow.workers.rows.segments import ReadableSegments, WritableSegments, map_content
from embodyflow.workers.rows.shard_store import ShardStore

ROWS = 1 << 17  # of one byte: two of the smallest segments
WRITER = WritableSegments()
CONNECTION: Future[None] = Future()
"""A connection of a writer that never ends."""


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    return ShardStore(BufferConfig(memory_gb=4 * ROWS / 1e9, spill_folder=str(tmp_path)))


def put(store: ShardStore, shard_id: str, value: int, num_rows: int = ROWS) -> Location:
    packing = Packing({"a": np.full(num_rows - 1024, value, np.uint8)})
    location = store.allocate(shard_id, packing.num_bytes, CONNECTION)
    assert location is not None
    packing.write(WRITER.map(location), location.key)
    store.commit(shard_id, location.key)
    return location


def read(location: Location) -> Table | None:
    memory = map_content(location)
    return None if memory is None else unpack(memory)


def value_of(location: Location) -> int:
    table = read(location)
    assert table is not None
    [value] = np.unique(table["a"])
    return int(value)


def numbers(store: ShardStore) -> dict[str, float]:
    return {name.removeprefix("buffer/"): value for name, value in to_floats(store.metrics()).items()}


def test_a_freed_segment_goes_to_the_next_writer(store: ShardStore) -> None:
    first = put(store, "1/a/0", 1)
    assert store.free("1/") == 1 and len(store) == 0
    assert read(first) is None
    second = put(store, "2/a/0", 2)
    assert second.descriptor == first.descriptor and second.key != first.key
    assert read(first) is None and value_of(second) == 2


def test_a_segment_that_is_copied_from_goes_to_no_writer_and_stays_mapped(store: ShardStore) -> None:
    reader, first = ReadableSegments(), put(store, "1/a/0", 1)
    with reader.content(first) as memory:
        store.free("1/")
        assert put(store, "2/a/0", 2).descriptor != first.descriptor
        assert (unpack(memory)["a"] == 1).all()
    third = put(store, "3/a/0", 3)
    assert third.descriptor == first.descriptor
    with reader.content(first) as gone, reader.content(third) as again:
        assert gone is None and again is memory and (unpack(again)["a"] == 3).all()


def test_a_spilled_shard_is_not_kept_mapped(store: ShardStore) -> None:
    reader = ReadableSegments()
    for number in range(6):  # there is room for four
        put(store, f"{number}/a/0", number)
    spilled = store.locate("0/a/0")
    assert spilled.is_spilled and not store.locate("5/a/0").is_spilled
    with reader.content(spilled) as memory, reader.content(spilled) as other:
        assert (unpack(memory)["a"] == 0).all() and other is not memory


def test_a_segment_that_is_still_read_goes_to_no_writer(store: ShardStore) -> None:
    first = put(store, "1/a/0", 1)
    table = read(first)
    store.free("1/")
    assert put(store, "2/a/0", 2).descriptor != first.descriptor
    assert table is not None and (table["a"] == 1).all()
    del table
    assert put(store, "3/a/0", 3).descriptor == first.descriptor


def test_writes_of_a_reader_are_invisible_to_others(store: ShardStore) -> None:
    location = put(store, "1/a/0", 1)
    table = read(location)
    assert table is not None
    table["a"][:] = 9
    assert value_of(location) == 1


def test_a_repeated_node_replaces_its_shard(store: ShardStore) -> None:
    first, again = put(store, "1/a/0", 1), put(store, "1/a/0", 2)
    assert read(first) is None and store.locate("1/a/0") == again and value_of(again) == 2
    assert len(store) == 1


def test_prefixes_free_iterations_and_an_unknown_shard_is_named(store: ShardStore) -> None:
    for shard_id in ("1/a/0", "1/b/0", "10/a/0", "3/a/0", "4/a/0"):
        put(store, shard_id, 1, num_rows=2048)
    assert store.free("1/") == 2 and len(store) == 3
    assert store.free() == 0 and store.free("3/", "4/") == 2 and len(store) == 1
    with pytest.raises(KeyError, match="1/a/0"):
        store.locate("1/a/0")


def test_beyond_the_limit_the_oldest_shards_are_spilled_and_read_from_disk(store: ShardStore) -> None:
    places = [put(store, f"1/a/{rank}", rank) for rank in range(7)]
    assert numbers(store)["num_spills"] == 3 and numbers(store)["memory_bytes"] <= store.capacity
    assert [read(place) is None for place in places] == [True] * 3 + [False] * 4
    assert [value_of(store.locate(f"1/a/{rank}")) for rank in range(7)] == list(range(7))
    store.free("")
    assert numbers(store)["spilled_bytes"] == numbers(store)["num_shards"] == 0
    assert numbers(store)["memory_bytes"] == numbers(store)["spare_bytes"] <= store.capacity


def see_what_is_freed(store: ShardStore) -> None:
    for rank in range(5):
        put(store, f"1/a/{rank}", 7)
    table = read(store.locate("1/a/0"))
    assert numbers(store)["num_spills"] == 1
    store.free("1/")
    assert table is not None and (table["a"] == 7).all()


def test_a_mapping_of_a_spilled_shard_survives_its_release(store: ShardStore) -> None:
    reader = multiprocessing.get_context("fork").Process(target=see_what_is_freed, args=(store,))
    reader.start()  # in another process, which a bus error would end
    reader.join()
    assert reader.exitcode == 0


def test_there_is_no_room_while_every_shard_is_read(store: ShardStore) -> None:
    tables = [read(put(store, f"1/a/{rank}", rank)) for rank in range(4)]
    assert store.allocate("2/a/0", ROWS - 1024, CONNECTION) is None
    tables.pop()
    assert store.allocate("2/a/0", ROWS - 1024, CONNECTION) is not None
    assert all((table["a"] == rank).all() for rank, table in enumerate(tables) if table)


def test_a_shard_larger_than_the_buffer_is_refused_with_the_key(store: ShardStore) -> None:
    with pytest.raises(BufferFullError, match=r"shard 1/a/0 takes .* raise cluster.buffer.memory_gb"):
        store.allocate("1/a/0", 5 * ROWS, CONNECTION)


def test_a_shard_that_was_not_allocated_cannot_be_committed(store: ShardStore) -> None:
    location = store.allocate("1/a/0", 100, CONNECTION)
    assert location is not None
    with pytest.raises(KeyError):
        store.commit("1/a/0", location.key - 1)
    store.commit("1/a/0", location.key)


def test_an_abandoned_writer_does_not_disturb_its_retry(store: ShardStore) -> None:
    """Both run in one process: the first was abandoned, and may end at any time."""
    packings = [Packing({"a": np.full(ROWS - 1024, value, np.uint8)}) for value in (1, 2)]
    given_up, now = (store.allocate("1/a/0", packing.num_bytes, Future()) for packing in packings)
    assert given_up is not None and now is not None
    packings[1].write(WRITER.map(now), now.key)
    packings[0].write(WRITER.map(given_up), given_up.key)
    store.commit("1/a/0", now.key)
    assert value_of(store.locate("1/a/0")) == 2
    store.commit("1/a/0", given_up.key)
    assert value_of(store.locate("1/a/0")) == 1 and len(store) == 1
    assert store.free("1/") == 1 and numbers(store)["memory_bytes"] == numbers(store)["spare_bytes"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for config in (BufferConfig(folder="/no/such"), BufferConfig(folder="/proc"), BufferConfig(spill_folder="/no")):
        with pytest.raises(ConfigError, match=r"cluster.buffer: /(no|proc)"):
            ShardStore(config)


def hold(config: BufferConfig, connection: Any) -> None:
    """Act as a buffer: put a shard, leave the allocation of a dead writer, wait to be killed."""
    store = ShardStore(config)
    location = put(store, "1/a/0", 7)
    connection.send((location, os.readlink(f"/proc/self/fd/{location.descriptor}")))
    signal.pause()


def users_of(target: str) -> list[str]:
    links = [link for process in Path("/proc").glob("[0-9]*/fd") for link in safe_list(process)]
    return [str(link) for link in links if safe_target(link) == target]


def safe_list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def safe_target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def test_a_reused_descriptor_is_not_taken_for_a_shard() -> None:
    with socket.socket() as connection, open(__file__) as other, ExitStack() as stack:
        descriptors = [*os.pipe(), os.eventfd(0), os.open("/", os.O_RDONLY)]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        for descriptor in (*descriptors, connection.fileno(), other.fileno()):
            assert map_content(Location(os.getpid(), descriptor, 1)) is None


def test_a_killed_buffer_leaves_nothing_behind_once_its_readers_end(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    config = BufferConfig(spill_folder=str(tmp_path))
    process = multiprocessing.get_context("fork").Process(target=hold, args=(config, theirs))
    process.start()
    location, target = ours.recv()
    table = read(location)
    assert table is not None and users_of(target)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert (table["a"] == 7).all() and read(location) is None  # the mapping stays valid
    del table
    assert users_of(target) == [] and os.listdir(tmp_path) == []


def test_memory_of_a_closed_connection_is_taken_back(store: ShardStore) -> None:
    connection: Future[None] = Future()
    location = store.allocate("1/a/0", ROWS - 1024, connection)
    connection.set_result(None)
    assert location is not None
    assert put(store, "2/a/0", 2).descriptor == location.descriptor
    with pytest.raises(KeyError):
        store.commit("1/a/0", location.key)


def test_memory_of_an_interrupted_writer_is_taken_back(store: ShardStore) -> None:
    for iteration in range(9):  # more than fit
        assert store.allocate(f"{iteration}/a/0", ROWS - 1024, CONNECTION) is not None
    assert value_of(put(store, "9/a/0", 9)) == 9
    assert numbers(store)["memory_bytes"] == ROWS


@pytest.mark.parametrize("num_bytes", [1, ROWS - 1024, 5_500_000_000])
def test_a_segment_wastes_a_quarter_at_most_and_never_much(num_bytes: int, tmp_path: Path) -> None:
    """The space of a segment is reserved once it is opened for writing."""
    store = ShardStore(BufferConfig(memory_gb=10, spill_folder=str(tmp_path)))
    location = store.allocate("1/node/0", num_bytes, CONNECTION)
    assert location is not None
    size = os.stat(f"/proc/{location.pid}/fd/{location.descriptor}").st_size
    assert num_bytes <= size <= num_bytes + min(max(num_bytes / 4, 1 << 16), 1 << 26)
