"""The buffer of a Ray node: it owns the shards that the node's workers put and hands them to whoever asks.

The arrays lie in the node's shared-memory object store. The buffer puts them there itself, one copy more than a
worker's own put would cost: Ray drops an object when the process that put it dies, and a shard must outlive its worker.
"""

from typing import Any

import ray

from embodyflow.data.batches import Columns, concatenate, num_rows_of
from embodyflow.data.plan import RankInput, ShardRef


@ray.remote(num_cpus=0)
class Buffer:
    """The shards of one Ray node, by shard id."""

    def __init__(self) -> None:
        self._refs: dict[str, ray.ObjectRef[Any]] = {}

    def put(self, shard_id: str, columns: Columns) -> None:
        """Hold a shard; a node that runs again replaces what its first run put."""
        self._refs[shard_id] = ray.put(columns)

    def get(self, shard_ids: list[str]) -> list[Any]:
        """Return the references of the shards, in order.

        Raises:
            KeyError: a shard is not held: it was freed, or put on another node.
        """
        return [self._refs[shard_id] for shard_id in shard_ids]

    def free(self, prefix: str) -> int:
        """Drop every shard whose id starts with ``prefix``; return how many there were."""
        doomed = [shard_id for shard_id in self._refs if shard_id.startswith(prefix)]
        for shard_id in doomed:
            del self._refs[shard_id]
        return len(doomed)

    def num_shards(self) -> int:
        """Return how many shards are held."""
        return len(self._refs)


class BufferClient:
    """A worker's view of the buffers: writes to its own node's, reads from any.

    Args:
        buffers: Ray node id to the node's buffer.
    """

    def __init__(self, buffers: dict[str, Any]) -> None:
        self._buffers = buffers
        self._host = ray.get_runtime_context().get_node_id()

    def put(self, shard_id: str, columns: Columns) -> ShardRef:
        """Store the columns in this node's buffer."""
        buffer = self._buffers[self._host]
        ray.get(buffer.put.remote(shard_id, columns))
        return ShardRef(shard_id, self._host, num_rows_of(columns))

    def get(self, part: RankInput) -> Columns:
        """Fetch the rows of ``part`` in order; without a copy where they are one shard of this node."""
        pieces = []
        for piece in part.slices:
            pieces.append({name: array[piece.index] for name, array in self.get_shard(piece.shard).items()})
        return concatenate(pieces)

    def get_shard(self, shard: ShardRef) -> Columns:
        """Fetch one whole shard.

        Raises:
            RuntimeError: the shard was replaced by one with another number of rows than the plan counts on.
        """
        [ref] = ray.get(self._buffers[shard.host].get.remote([shard.shard_id]))
        columns: Columns = ray.get(ref)
        if num_rows_of(columns) != shard.num_rows:
            raise RuntimeError(
                f"shard {shard.shard_id} has {num_rows_of(columns)} rows, not the {shard.num_rows} it was planned with"
            )
        return columns
