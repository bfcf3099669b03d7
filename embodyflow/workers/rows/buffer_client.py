"""A worker's view of the buffers: rows of its own Ray node through shared memory, those of others through Ray."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import ray

from embodyflow.data.metrics import Metric, total
from embodyflow.data.parts import Part, write_parts
from embodyflow.data.plans.row_plan import Location, Piece, RankInput, ShardRef, Slice, WeightsRef
from embodyflow.data.published_weights import PublishedWeights
from embodyflow.data.ragged import Array
from embodyflow.data.table_packing import Packing, unpack_rows
from embodyflow.data.tables import Column, Table, concatenate, num_rows_of
from embodyflow.errors import ShardLostError
from embodyflow.workers.local_calls import LocalCaller
from embodyflow.workers.lost_actors import ACTOR_GONE
from embodyflow.workers.rows.mapped_arrays import MappedArrays
from embodyflow.workers.rows.segments import (
    ReadableSegments,
    WritableSegments,
    complete,
    copy_content,
    map_content,
    opened,
)

_LOOKUPS = 3  # the buffer may spill a shard between its answer and the mapping


class BufferClient:
    """Writes to its own Ray node's buffer and reads from any.

    Args:
        buffers: Buffer of each Ray node, by node id.
    """

    def __init__(self, buffers: Mapping[str, Any]) -> None:
        self._buffers = buffers
        self._host = ray.get_runtime_context().get_node_id()
        self._segments, self._readable = WritableSegments(), ReadableSegments()
        self._callers = threading.local()
        self._counts: dict[str, int] = defaultdict(int)
        self._shared: tuple[str, Mapping[str, Array]] = "", {}  # id and arrays of the weights that versions share
        self._traffic, self._lock = [0, 0], threading.Lock()  # bytes read and written since take_traffic()

    def put(self, shard_id: str, columns: Mapping[str, Column]) -> ShardRef:
        """Write a shard to this node's shared memory; if the buffer died, to that of its successor.

        Raises:
            BufferFullError: There was no room for ``cluster.buffer.patience`` seconds.
            ShardLostError: This node's buffer is gone, and so is its successor.
        """
        packing, num_rows = Packing(columns), num_rows_of(columns)
        with _as_lost(ShardRef(shard_id, self._host, num_rows)):
            try:
                location = self._write(shard_id, packing)
            except (ConnectionError, FileNotFoundError):  # the buffer died; the next call reaches its successor
                location = self._write(shard_id, packing)
        return ShardRef(shard_id, self._host, num_rows, location)

    def put_in_parts(self, shard_id: str, outlines: Mapping[str, Array], parts: Iterable[Part]) -> ShardRef:
        """Write a shard part by part; this process holds and maps one part of it at a time.

        Readers see the shard once it is whole. If the buffer dies meanwhile, its successor gets what has been written.

        Args:
            shard_id: Id of the shard.
            outlines: An array with the shape and dtype of each column.
            parts: The values of all columns, in any order.

        Raises:
            BufferFullError: There was no room for ``cluster.buffer.patience`` seconds.
            ShardLostError: This node's buffer is gone, and so is its successor.
            ValueError: The parts are fewer or more than the columns' values.
        """
        packing, num_rows = Packing(outlines), num_rows_of(outlines)
        shard = ShardRef(shard_id, self._host, num_rows)
        with ExitStack() as stack:
            with _as_lost(shard):
                try:
                    location, descriptor = self._open(shard_id, packing, stack)
                except (ConnectionError, FileNotFoundError):
                    location, descriptor = self._open(shard_id, packing, stack)
            write_parts(descriptor, packing, parts)
            with _as_lost(shard):
                try:
                    self._complete(shard_id, location, descriptor)
                except ConnectionError:  # the buffer died; its segment lives as long as the descriptor
                    location, successor = self._open(shard_id, packing, stack)
                    copy_content(descriptor, successor, packing.num_bytes)
                    self._complete(shard_id, location, successor)
        self._count(0, packing.num_bytes)
        return ShardRef(shard_id, self._host, num_rows, location)

    def _open(self, shard_id: str, packing: Packing, stack: ExitStack) -> tuple[Location, int]:
        """Return the location of a new segment, and a descriptor of it that ``stack`` closes."""
        location: Location = self._call("allocate", shard_id, packing.num_bytes)
        return location, stack.enter_context(opened(location))

    def _complete(self, shard_id: str, location: Location, descriptor: int) -> None:
        complete(descriptor, location)
        self._call("commit", shard_id, location.key)

    def _write(self, shard_id: str, packing: Packing) -> Location:
        location: Location = self._call("allocate", shard_id, packing.num_bytes)
        packing.write(self._segments.map(location), location.key)
        self._call("commit", shard_id, location.key)
        self._count(0, packing.num_bytes)
        return location

    def get(self, part: RankInput) -> Table:
        """Return the rows of ``part`` in order; a single slice of a shard of this node is not copied.

        The arrays belong to the caller. Writing to them is invisible to others.

        Raises:
            KeyError: A shard was freed.
            RuntimeError: A shard has another number of rows than the plan.
            ShardLostError: A shard's buffer is gone.
        """
        by_host: dict[str, list[int]] = defaultdict(list)
        for index, piece in enumerate(part.slices):
            by_host[piece.shard.host].append(index)
        here = by_host.pop(self._host, [])
        # Other nodes first: their answers are in flight while this node's rows are read.
        asked = {host: self._ask(host, [part.slices[index] for index in there]) for host, there in by_host.items()}
        with ExitStack() as held:
            is_copied = len(part.slices) > 1

            def map_here(location: Location) -> Any:
                return held.enter_context(self._readable.content(location)) if is_copied else map_content(location)

            tables = {index: self._read_here(part.slices[index], map_here) for index in here}
            for host, there in by_host.items():
                with _as_lost(part.slices[there[0]].shard):
                    tables |= zip(there, ray.get(asked[host]), strict=True)
            rows = concatenate([tables[index] for index in range(len(part.slices))])
        self._count(sum(column.nbytes for column in rows.values()), 0)
        return rows

    def get_shard(self, shard: ShardRef) -> Table:
        """Return one whole shard; see :meth:`get`."""
        return self.get(RankInput((Slice(shard, 0, shard.num_rows),), 0, shard.num_rows))

    def get_weights(self, weights: WeightsRef) -> Mapping[str, Array]:
        """Return the weights of a version; those of this node take up memory only while they are read.

        Weights that versions share are read once.

        Raises:
            KeyError, ShardLostError: See :meth:`get`.
        """
        own = MappedArrays(self._arrays_of(weights.own))
        if weights.shared is None:
            return own
        known, arrays = self._shared
        if known != weights.shared.shard_id:  # which names the content
            arrays = self._arrays_of(weights.shared)
            self._shared = weights.shared.shard_id, arrays
        return PublishedWeights(own, MappedArrays(arrays), arrays)

    def _arrays_of(self, shard: ShardRef) -> dict[str, Array]:
        """Return the columns of a shard of one row, without the dimension of the rows."""
        return {name: cast(Array, column)[0, ...] for name, column in self.get_shard(shard).items()}

    def metrics(self) -> dict[str, Metric]:
        """Return the number of reads since the last call: of known locations, after lookups, from other nodes."""
        counts, self._counts = self._counts, defaultdict(int)
        return {name: total(count) for name, count in counts.items()}

    def take_traffic(self) -> tuple[int, int]:
        """Return the bytes of columns that were read, and those that were written, since the last call."""
        with self._lock:
            read, written = self._traffic
            self._traffic = [0, 0]
        return read, written

    def _count(self, read: int, written: int) -> None:
        with self._lock:
            self._traffic[0] += read
            self._traffic[1] += written

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call this node's buffer; after a failed call, the next one connects to the buffer's successor."""
        caller: LocalCaller | None = getattr(self._callers, "own_buffer", None)
        if caller is None or not caller.is_open:
            # Retries wait until a buffer that died has been restarted.
            asked = self._buffer_of(self._host).address.options(max_task_retries=-1).remote()
            address = ray.get(asked)
            caller = LocalCaller(address)
            self._segments.belong_to(address)
            self._callers.own_buffer = caller
        return caller.call(method, *arguments)

    def _ask(self, host: str, pieces: list[Piece]) -> Any:
        """Ask another Ray node's buffer for rows; return the Ray reference of its answer."""
        with _as_lost(pieces[0].shard):
            buffer = self._buffer_of(host)
        self._counts["buffer/remote_reads"] += len(pieces)
        return buffer.read.remote(pieces)

    def _buffer_of(self, host: str) -> Any:
        """Return the buffer of a Ray node.

        Raises:
            ConnectionError: The node has none.
        """
        try:
            return self._buffers[host]
        except KeyError as error:
            raise ConnectionError(f"Ray node {host} has no buffer") from error

    def _read_here(self, piece: Piece, map_here: Callable[[Location], Any]) -> Table:
        memory = map_here(piece.shard.location) if piece.shard.location is not None else None
        self._counts["buffer/local_hits" if memory is not None else "buffer/local_misses"] += 1
        for _ in range(_LOOKUPS):
            if memory is not None:
                return unpack_rows(memory, piece)
            with _as_lost(piece.shard):
                memory = map_here(self._call("locate", piece.shard))
        raise RuntimeError(f"shard {piece.shard.shard_id} is not at the location that its buffer returns")


@contextmanager
def _as_lost(shard: ShardRef) -> Iterator[None]:
    """Raise a lost connection to the shard's buffer as the loss of the shard."""
    try:
        yield
    except (*ACTOR_GONE, ray.exceptions.ObjectLostError, ConnectionError, FileNotFoundError) as error:
        raise ShardLostError(shard.shard_id, shard.host) from error
