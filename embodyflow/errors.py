"""Errors that a user can mend, told in one line."""


class ConfigError(ValueError):
    """A configuration is wrong: the message names the key and what is allowed."""


class ParityError(RuntimeError):
    """Two computations that must agree (rollout and trainer, two ranks) do not."""


class SamplingError(RuntimeError):
    """An iteration did not find enough rows worth training on; the message says what to change."""


class InfrastructureError(RuntimeError):
    """Something that computes or stores failed, not what it computed: the same again may well succeed.

    Every other exception of a node is taken for a bug, which the same again would only repeat.
    """


class WorkerLostError(InfrastructureError):
    """A worker's process is gone, or does not answer; or its model is half trained. The message names it."""


class NodeTimeoutError(InfrastructureError, TimeoutError):
    """A node took longer than it may; the message names it and shows where its ranks were."""


class ShardLostError(InfrastructureError):
    """A shard is gone because its buffer is: the node that made it must run again.

    Attributes:
        shard_id: ``<iteration>/<node>/<rank>``, which names the node.
        node_id: the Ray node whose buffer held it.
    """

    def __init__(self, shard_id: str, node_id: str) -> None:
        super().__init__(shard_id, node_id)
        self.shard_id, self.node_id = shard_id, node_id

    def __str__(self) -> str:
        return f"shard {self.shard_id} is lost with the buffer of Ray node {self.node_id}"


class BufferFullError(RuntimeError):
    """A buffer found no room for a shard, in memory or by spilling."""


class DamageError(RuntimeError):
    """A file of a run's folder does not hold what was written to it; the message names file and place."""


class DiskFullError(RuntimeError):
    """There is no room for the next checkpoint; what was committed is intact."""


class RewardError(RuntimeError):
    """A reward function failed, which says nothing about the response: the run must not go on as if it did.

    Attributes:
        uid: of the row that was to be scored.
        reason: what happened.
    """

    def __init__(self, uid: int, reason: str) -> None:
        super().__init__(uid, reason)
        self.uid, self.reason = uid, reason

    def __str__(self) -> str:
        return f"reward of row {self.uid}: {self.reason}"
