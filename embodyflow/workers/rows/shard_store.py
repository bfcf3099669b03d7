"""The bookkeeping of a buffer: which shard is in which segment, and how much room is left."""

import secrets
from dataclasses import dataclass, replace
from typing import Protocol

from embodyflow.config.buffer import BufferConfig
from embodyflow.data.metrics import Metric, maximum, total
from embodyflow.data.plans.row_plan import Location
from embodyflow.errors import BufferFullError
from embodyflow.workers.rows.segments import Segment, free_bytes

_SMALLEST = 1 << 16  # bytes of the smallest segment
_LARGEST_UNIT = 1 << 26  # bytes that rounding adds at most


@dataclass(frozen=True)
class _Shard:
    segment: Segment
    key: int
    num_bytes: int
    spilled: bool = False

    @property
    def location(self) -> Location:
        return replace(self.segment.location(self.key), is_spilled=self.spilled)


class Writer(Protocol):
    """A thread of a worker that writes one shard at a time, for as long as its connection is open."""

    def done(self) -> bool:
        """Return True if the connection has ended."""


class ShardStore:
    """The shards of one machine, in memory up to a limit and on disk beyond it.

    Segments of freed shards stay for the next writer, because writing to used pages is about ten times as fast.

    Args:
        config: Folders and memory limit.

    Raises:
        ConfigError: A folder cannot be used.
    """

    def __init__(self, config: BufferConfig) -> None:
        self._config = config
        for folder in (config.folder, config.spill_folder):
            Segment(folder, 0).close()
        self.capacity = int(config.memory_gb * 1e9) if config.memory_gb else free_bytes(config.folder) // 2
        self._shards: dict[str, _Shard] = {}  # by id, oldest first
        self._written: dict[int, tuple[str, _Shard, Writer]] = {}  # by key: id, shard, and its writer
        self._spare: list[Segment] = []
        self._still_read: list[Segment] = []
        self._num_spills = 0
        self._peak_bytes = 0

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self._shards)

    def __contains__(self, shard_id: str) -> bool:
        """Return True if the shard is here."""
        return shard_id in self._shards

    @property
    def memory_bytes(self) -> int:
        """Bytes of all segments in memory, including spare ones."""
        held = [shard.segment for shard in self._shards.values() if not shard.spilled]
        written = [shard.segment for _, shard, _ in self._written.values()]
        return sum(segment.capacity for segment in (*held, *written, *self._spare, *self._still_read))

    def allocate(self, shard_id: str, num_bytes: int, writer: Writer) -> Location | None:
        """Return a location for ``writer`` to write a shard to; ``None`` if there is no room now.

        Segments that the writer has not committed are taken back: it was interrupted.

        Raises:
            BufferFullError: The shard is larger than the buffer.
        """
        capacity = _round_up(num_bytes)
        if capacity > self.capacity:
            raise BufferFullError(
                f"shard {shard_id} takes {num_bytes} bytes, the buffer has {self.capacity}: "
                "raise cluster.buffer.memory_gb"
            )
        self._reclaim(writer)
        segment = self._acquire(capacity)
        if segment is None:
            return None
        # An abandoned node and its retry may write the same shard at once, so each gets its own segment.
        shard = _Shard(segment, secrets.randbelow(2**63 - 1) + 1, num_bytes)
        self._written[shard.key] = shard_id, shard, writer
        self._peak_bytes = max(self._peak_bytes, self.memory_bytes)
        return shard.location

    def commit(self, shard_id: str, key: int) -> None:
        """Keep a shard that has been written; it replaces an earlier one of the same id.

        Raises:
            KeyError: No shard with this id and key is being written.
        """
        if key not in self._written or self._written[key][0] != shard_id:
            raise KeyError(shard_id)
        _, shard, _ = self._written.pop(key)
        if shard_id in self._shards:
            self._retire(self._shards.pop(shard_id))
        self._shards[shard_id] = shard

    def locate(self, shard_id: str) -> Location:
        """Return the location of a shard.

        Raises:
            KeyError: The shard was freed, or never put here.
        """
        return self._shards[shard_id].location

    def free(self, *prefixes: str) -> int:
        """Drop every shard whose id starts with one of ``prefixes``; return their number."""
        doomed = [shard_id for shard_id in self._shards if shard_id.startswith(prefixes)]
        for shard_id in doomed:
            self._retire(self._shards.pop(shard_id))
        return len(doomed)

    def metrics(self) -> dict[str, Metric]:
        """Return usage and spilling since the start; bytes add up over Ray nodes, the peak is that of the fullest."""
        spilled = [shard.num_bytes for shard in self._shards.values() if shard.spilled]
        return {
            "buffer/num_shards": total(len(self._shards)),
            "buffer/memory_bytes": total(self.memory_bytes),
            "buffer/spare_bytes": total(sum(segment.capacity for segment in self._spare)),
            "buffer/peak_memory_share": maximum(self._peak_bytes / self.capacity),
            "buffer/spilled_bytes": total(sum(spilled)),
            "buffer/num_spills": total(self._num_spills),
        }

    def _retire(self, shard: _Shard) -> None:
        shard.segment.clear()
        if shard.spilled:
            shard.segment.let_go()
        else:
            self._still_read.append(shard.segment)
            self._reclaim()

    def _reclaim(self, idle: Writer | None = None) -> None:
        """Make segments spare that are no longer read, or that a writer left that has ended or is ``idle``."""
        for key, (_, shard, writer) in list(self._written.items()):
            if writer is idle or writer.done():
                del self._written[key]
                self._still_read.append(shard.segment)
        read = [segment for segment in self._still_read if segment.is_read()]
        self._spare += [segment for segment in self._still_read if segment not in read]
        self._still_read = read

    def _acquire(self, capacity: int) -> Segment | None:
        """Return a spare segment or a new one, spilling as needed; ``None`` if there is no room."""
        while (segment := self._take_spare(capacity)) is None:
            if self.memory_bytes + capacity <= self.capacity:
                return Segment(self._config.folder, capacity)
            if self._spare:
                self._spare.pop(0).close()
            elif not self._spill_oldest():
                return None
        return segment

    def _take_spare(self, capacity: int) -> Segment | None:
        """Return the smallest spare segment of ``capacity`` to twice as many bytes."""
        fitting = [segment for segment in self._spare if capacity <= segment.capacity <= 2 * capacity]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda segment: segment.capacity)
        self._spare.remove(chosen)
        return chosen

    def _spill_oldest(self) -> bool:
        """Move the oldest shard that no process reads to disk; return True if there was one."""
        for shard_id, shard in self._shards.items():
            if not shard.spilled and not shard.segment.is_read():
                copy = shard.segment.copy_to(self._config.spill_folder, shard.num_bytes)
                self._shards[shard_id] = _Shard(copy, shard.key, shard.num_bytes, spilled=True)
                self._num_spills += 1
                self._retire(shard)
                return True
        return False


def _round_up(num_bytes: int) -> int:
    """Round up to three significant bits, or by 64 MiB at most, so that shards of similar size can reuse segments."""
    unit = min(max(1 << max(num_bytes.bit_length() - 3, 0), _SMALLEST), _LARGEST_UNIT)
    return -(-num_bytes // unit) * unit
