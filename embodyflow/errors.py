"""Errors with a one-line message that names what to change."""

from typing import ClassVar


class ConfigError(ValueError):
    """A configuration is wrong; the message names the key and what is allowed."""


class ParityError(RuntimeError):
    """Two computations that must agree, such as rollout and trainer or two ranks, do not."""


class HealthError(RuntimeError):
    """A finding about the health of a run ended it; the message names the detector and what it found."""


class SweepError(RuntimeError):
    """Runs of a sweep have not finished; the message names them."""


class SamplingError(RuntimeError):
    """An iteration found too few rows worth training on; the message says what to change."""


class InfrastructureError(RuntimeError):
    """A process, a disk or the network failed, so a retry may succeed.

    Every other exception of a node counts as a bug, which a retry would repeat.
    """


class ClusterLostError(RuntimeError):
    """The head of the Ray cluster is gone, or no node is alive, so no retry can succeed."""


class ServerLostError(InfrastructureError):
    """The Prefect server does not answer, so a flow cannot start or report its end; the message has its address."""


class WorkerLostError(InfrastructureError):
    """A worker's process is gone or does not answer, or its model is half trained; the message names it."""


class NodeTimeoutError(InfrastructureError, TimeoutError):
    """A node exceeded its time limit; the message names it, and a note has the stacks of its ranks."""


class ShardLostError(InfrastructureError):
    """A shard is gone with its buffer, so the node that made it must be repeated.

    Attributes:
        shard_id: ``<iteration>/<node>/<rank>``, which names the node.
        node_id: Id of the Ray node whose buffer held the shard.
    """

    def __init__(self, shard_id: str, node_id: str) -> None:
        super().__init__(shard_id, node_id)
        self.shard_id, self.node_id = shard_id, node_id

    def __str__(self) -> str:
        return f"shard {self.shard_id} is lost with the buffer of Ray node {self.node_id}"


class BufferFullError(RuntimeError):
    """A buffer has no room for a shard, neither in memory nor by spilling."""


class DamageError(RuntimeError):
    """A file of a run's folder is missing or damaged; the message names it."""


class StorageError(RuntimeError):
    """A run cannot write to its disk, or its folder is gone; the message names the folder and what to do."""


class DiskFullError(StorageError):
    """The disk has no room for the next checkpoint; committed checkpoints are intact."""


class RowError(RuntimeError):
    """A function failed on a row. That says nothing about the row, so the run stops instead of scoring it 0.

    Attributes:
        what: Name of the function, which precedes the id in the message.
        uid: Id of the row.
        reason: Cause of the failure.
    """

    what: ClassVar[str]

    def __init__(self, uid: int, reason: str) -> None:
        super().__init__(uid, reason)
        self.uid, self.reason = uid, reason

    def __str__(self) -> str:
        return f"{self.what} {self.uid}: {self.reason}"


class RewardError(RowError):
    """A reward function failed on a row."""

    what = "reward of row"


class EpisodeError(RowError):
    """A workflow raised in an episode."""

    what = "workflow of episode"
