"""The buffer of a Ray node: it owns the shared memory in which the node's workers exchange rows.

Rows pass through the buffer process only on their way to another Ray node. The buffer owns the memory, so a shard
outlives the worker that wrote it.
"""

import asyncio
import os
import time

import ray

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.metrics import Metric, total
from embodyflow.data.plans.row_plan import Location, Piece, ShardRef
from embodyflow.data.table_packing import unpack_rows
from embodyflow.data.tables import Table
from embodyflow.errors import BufferFullError, ShardLostError
from embodyflow.workers.local_calls import LocalServer, Method, serve
from embodyflow.workers.rows.segments import map_content
from embodyflow.workers.rows.shard_store import ShardStore

_POLL_SECONDS = 0.005


@ray.remote(num_cpus=0, max_restarts=-1)
class Buffer:
    """The shards of one Ray node, by shard id. Ray restarts a buffer that died; its shards are lost.

    Args:
        config: Folders and memory limit.
    """

    def __init__(self, config: BufferConfig) -> None:
        self._store = ShardStore(config)
        self._patience = config.patience
        self._bytes_sent = 0
        self._server: asyncio.Task[LocalServer] | None = None

    async def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def address(self) -> bytes:
        """Return the address at which processes of this node call ``allocate``, ``commit`` and ``locate``."""
        if self._server is None:
            methods: dict[str, Method] = {"allocate": self.allocate, "commit": self.commit, "locate": self.locate}
            self._server = asyncio.create_task(serve(methods))
        return (await self._server).address

    async def allocate(self, shard_id: str, num_bytes: int) -> Location:
        """Wait for room and return a location for the caller to write a shard to.

        If the caller's connection ends before it commits the shard, the buffer takes the memory back.

        Raises:
            BufferFullError: The shard is larger than the buffer, or there was no room for ``patience`` seconds.
        """
        deadline = time.monotonic() + self._patience
        writer = asyncio.current_task()  # serves the caller's connection
        assert writer is not None
        while (location := self._store.allocate(shard_id, num_bytes, writer)) is None:
            if time.monotonic() > deadline:
                raise BufferFullError(
                    f"no room for shard {shard_id} of {num_bytes} bytes within {self._patience:g} s: all "
                    f"{self._store.capacity} bytes are being written or read; raise cluster.buffer.memory_gb"
                )
            await asyncio.sleep(_POLL_SECONDS)
        return location

    async def commit(self, shard_id: str, key: int) -> None:
        """Keep a shard that has been written; it replaces an earlier one of the same id."""
        self._store.commit(shard_id, key)

    async def locate(self, shard: ShardRef) -> Location:
        """Return the location of a shard.

        Raises:
            KeyError: The shard was freed, or never put here.
            ShardLostError: The shard died with the predecessor of this buffer.
        """
        if shard.location is not None and shard.location.pid != os.getpid() and shard.shard_id not in self._store:
            raise ShardLostError(shard.shard_id, shard.host)
        return self._store.locate(shard.shard_id)

    async def read(self, pieces: list[Piece]) -> list[Table]:
        """Return rows of shards, for a reader on another Ray node.

        Raises:
            KeyError, ShardLostError: See :meth:`locate`.
            RuntimeError: A shard has another number of rows than the plan.
        """
        tables = [unpack_rows(map_content(await self.locate(piece.shard)), piece) for piece in pieces]
        self._bytes_sent += sum(column.nbytes for table in tables for column in table.values())
        return tables

    async def free(self, *prefixes: str) -> int:
        """Drop every shard whose id starts with one of ``prefixes``; return their number."""
        return self._store.free(*prefixes)

    async def num_shards(self) -> int:
        """Return the number of shards."""
        return len(self._store)

    async def metrics(self) -> dict[str, Metric]:
        """Return usage, spilling and traffic to other Ray nodes since the start."""
        return self._store.metrics() | {"buffer/bytes_sent": total(self._bytes_sent)}
