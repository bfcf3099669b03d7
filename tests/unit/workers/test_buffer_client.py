"""A worker's buffer client with real segments and buffer processes, without Ray."""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from waiting import eventually

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.row_plan import Location
from embodyflow.workers.local_calls import LocalCaller, serve
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.shard_store import ShardStore


def answer(connection: Any) -> None:
    """A buffer's process."""
    store = ShardStore(BufferConfig(memory_gb=0.01))

    async def allocate(*arguments: Any) -> Location | None:
        return store.allocate(*arguments, asyncio.current_task())

    async def commit(*arguments: Any) -> None:
        store.commit(*arguments)

    async def main() -> None:
        connection.send(await serve({"allocate": allocate, "commit": commit}))
        await asyncio.sleep(600)

    asyncio.run(main())


@contextmanager
def buffer() -> Iterator[bytes]:
    """Start one and yield its address; kill it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,))
    process.start()
    yield ours.recv()
    process.kill()
    process.join()


def is_mapped(inode: int) -> bool:
    return any(line.split()[4] == str(inode) for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_dead_buffers_memory_is_released_once_its_successor_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[bytes] = []
    handle = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: addresses[-1]))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr(ray, "get", lambda answer: answer)
    client = BufferClient({"here": SimpleNamespace(address=handle)})

    def put() -> int:
        location = client.put("1/node/0", {"uid": np.arange(10)}).location
        assert location is not None
        inode = os.stat(f"/proc/{location.pid}/fd/{location.descriptor}").st_ino
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


def test_memory_of_an_interrupted_thread_goes_to_others() -> None:
    with buffer() as address:
        interrupted, other = LocalCaller(address), LocalCaller(address)
        assert interrupted.call("allocate", "1/node/0", 6_000_000) is not None
        assert other.call("allocate", "1/node/1", 6_000_000) is None
        del interrupted  # closes its connection
        assert eventually(lambda: other.call("allocate", "1/node/1", 6_000_000) is not None)
