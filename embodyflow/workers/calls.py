"""Messages between the control plane and the ranks: names and numbers, never a tensor.

The flow describes a node as :class:`NodeWork`. The session turns it into one :class:`NodeCall` per rank, each rank
answers with a :class:`NodeResult`, and the session merges these into a :class:`NodeReport`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embodyflow.data.metrics import Metric
from embodyflow.data.plans.row_plan import Index, RankInput, RowFacts, ShardRef, WeightsRef
from embodyflow.data.rows_file import Journal
from embodyflow.data.segment import Segment
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.process.core_time import CoreTime
from embodyflow.workers.rows.layout import Layout, Rows

STREAM = "stream"
"""Beginning of the ids of rows of single groups."""
WEIGHTS = "weights/"
"""Beginning of the ids of published weights."""
SHARED = f"{WEIGHTS}shared/"
"""Beginning of the ids of weights that versions share, before their SHA-256."""


@dataclass(frozen=True)
class NodeWork:
    """A node for a group to run.

    Attributes:
        node_id: Name of the node, or of work outside the graph (``evaluate_greedy``, ``record_video``).
        function: Node function as ``"module:function"``.
        group: ``"rollout"`` or ``"trainer"``; ``None`` runs the node where the rows of its first parent are.
        iteration: Index of the iteration, from 1; 0 before the first.
        config: Configuration of the node itself.
        layout: How the rows are spread over the ranks: shared out, or all on each.
        needs_model: Whether it uses the group's engine. Such nodes run one at a time; others run beside them.
        only_forward_compute: Whether it must leave the weights as they are, which the trainer's ranks check.
        trains: Whether it changes weights. A rank trains once: it answers a repeated call with its first result.
        timeout: Time limit in seconds; ``None`` is ``cluster.node_timeout``.
        stage: Folder that keeps its rows on disk; ``None`` keeps them in the buffer only.
        next_stage: Folder of the same node in the next iteration, for rows left over.
        run_folder: Folder of the run; ``None`` for work outside the graph.
        policy_version: Version of the weights that rollout workers act with; ``None`` is the newest.
        segment: Segment that it samples; ``None`` for a node that runs once.
        num_ranks: Number of ranks that run it, the first ones of the group; ``None`` is all of them.
        in_parts: Whether it plays its rows part by part before it runs, and other nodes take turns with the parts.
        following: Nodes that run right after it, in the same call, if its group has a single rank.
    """

    node_id: str
    function: str
    group: str | None
    iteration: int
    config: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = Layout.SPLIT
    needs_model: bool = True
    only_forward_compute: bool = False
    trains: bool = False
    timeout: float | None = None
    stage: str | None = None
    next_stage: str | None = None
    run_folder: str | None = None
    policy_version: int | None = None
    segment: Segment | None = None
    num_ranks: int | None = None
    in_parts: bool = False
    following: "tuple[Following, ...]" = field(default=(), repr=False)


@dataclass(frozen=True)
class NodeCall:
    """A node for one rank to run. It is the :class:`~embodyflow.nodes.context.NodeContext` of the node function.

    Attributes:
        work: The node.
        seed: Seed of the run.
        parents: This rank's part of each parent's output, one entry per parent.
        passes_rows_on: Whether this rank's output counts. Ranks with the same rows make the same; one of them passes
            its rows on.
        weights: Policy weights to act with; ``None`` for a node that acts with none, or with the trainer's own.
        policy_version: Version of those weights.
        checks_weights: Whether the rank compares its weights before and after.
        timeout: Time limit in seconds.
    """

    work: NodeWork
    seed: int
    parents: tuple[RankInput, ...] = ()
    passes_rows_on: bool = True
    weights: WeightsRef | None = None
    policy_version: int = 0
    checks_weights: bool = False
    timeout: float = 600.0

    def with_parents(self, parents: Sequence[RankInput]) -> "NodeCall":
        """Return the call with parts of its parents' output."""
        return replace(self, parents=tuple(parents))

    @property
    def node_id(self) -> str:
        """Name of the node."""
        return self.work.node_id

    @property
    def iteration(self) -> int:
        """Index of the iteration."""
        return self.work.iteration

    @property
    def segment(self) -> Segment | None:
        """Segment that this call samples; ``None`` for a node that runs once."""
        return self.work.segment

    @property
    def num_ranks(self) -> int | None:
        """Number of ranks that run the node, the first ones of the group; ``None`` is all of them."""
        return self.work.num_ranks

    @property
    def rows(self) -> RankInput:
        """This rank's part of the first parent that passes rows on; the rows of other parents follow its order."""
        return next((part for part in self.parents if part.slices), RankInput((), 0, 0))

    @property
    def positions(self) -> Index:
        """Positions of this rank's rows in the whole batch, int64 [N]."""
        return self.rows.positions

    @property
    def total_rows(self) -> int:
        """Number of rows in the whole batch."""
        return self.rows.total_rows

    @property
    def run_folder(self) -> Path | None:
        """Folder of the run; ``None`` for work outside the graph."""
        return None if self.work.run_folder is None else Path(self.work.run_folder)

    def journal(self, rank: int, part: int = 0) -> Journal | None:
        """Return the file that keeps pieces of a rank's rows as they are made; ``None`` for a node that keeps none.

        Args:
            rank: Rank of the worker.
            part: Index of the batch of rows, for a node that makes several.
        """
        return None if self.work.stage is None else Journal(Path(self.work.stage) / f"{rank}.{part}.parts")

    def surplus(self, rank: int) -> tuple[Journal, Journal] | None:
        """Return the files with the rows left over by the previous iteration and by this one, in this order.

        ``None`` for a node whose rows are not kept on disk.
        """
        here, there = self.work.stage, self.work.next_stage
        if here is None or there is None:
            return None
        return Journal(Path(here) / f"{rank}.surplus"), Journal(Path(there) / f"{rank}.surplus")


@dataclass(frozen=True)
class ChainCall:
    """Nodes for a single rank to run one after the other, each on the rows of the ones before it.

    Attributes:
        group: Group of the rank.
        first: First node.
        following: The others. Their calls lack parents, which are ids of nodes of the chain, or the rows of others.
    """

    group: str
    first: NodeCall
    following: tuple[tuple[NodeCall, tuple[str | Rows, ...]], ...]

    @property
    def node_id(self) -> str:
        """Names of the nodes, for messages."""
        return ", ".join([self.first.node_id, *(call.node_id for call, _ in self.following)])

    @property
    def iteration(self) -> int:
        """Index of the iteration."""
        return self.first.iteration

    @property
    def timeout(self) -> float:
        """Time limit of all nodes in seconds."""
        return self.first.timeout + sum(call.timeout for call, _ in self.following)


@dataclass(frozen=True)
class GroupCall:
    """A group for one rank to play, beside others.

    Attributes:
        node_id: Name of the node that the group belongs to.
        ticket: The group.
        seed: Seed of the run.
        folder: Folder of the group's files.
        weights: Weights of the versions that may act, among them that of the ticket.
        num_versions: Most versions of the policy that the rank acts with at a time.
        stream: Number of the stream that the group belongs to; a recovery begins another.
        timeout: Time limit in seconds.
        swaps: Changes of weights within its rows that the ledger names; ``None`` where it names none yet.
    """

    node_id: str
    ticket: Ticket
    seed: int
    folder: str
    weights: Mapping[int, WeightsRef]
    num_versions: int
    stream: int
    timeout: float
    swaps: tuple[Swap, ...] | None = None

    @property
    def journal(self) -> Journal:
        """The file that keeps the group's rows."""
        return Journal(Path(self.folder) / f"{self.ticket.attempt}.{self.ticket.version}.parts")

    @property
    def swaps_path(self) -> Path:
        """The file with the changes of weights within the group's rows."""
        return self.journal.beside("swaps")

    @property
    def shard_id(self) -> str:
        """Id of the group's rows in a buffer."""
        return f"{STREAM}/{self.node_id}/{self.ticket.name}"


@dataclass(frozen=True)
class Published:
    """Answer of the trainer's rank 0 to the publication of a version.

    Attributes:
        own: Weights that training changes.
        digest: SHA-256 of all weights.
        shared_digest: SHA-256 of those that training leaves alone; ``None`` without any.
    """

    own: ShardRef
    digest: str
    shared_digest: str | None = None


@dataclass(frozen=True)
class LogLine:
    """A log record of a worker, shown again in the flow run."""

    level: int
    created: float
    message: str


@dataclass(frozen=True)
class Usage:
    """What ranks used for a node.

    Attributes:
        bytes_read: Bytes of rows and weights that came from buffers.
        bytes_written: Bytes of rows and weights that went to a buffer.
        peak_bytes: Largest resident memory of a rank's process so far, without its environment processes.
        peak_device_bytes: Most bytes of device memory that tensors of a rank's process have held so far.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    peak_bytes: int = 0
    peak_device_bytes: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the usage of both."""
        return Usage(
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            max(self.peak_bytes, other.peak_bytes),
            max(self.peak_device_bytes, other.peak_device_bytes),
        )


@dataclass(frozen=True)
class NodeResult:
    """Answer of one rank.

    Attributes:
        shard: Location of the output rows; ``None`` if it passes none on.
        metrics: Metrics with their reductions.
        info: Small JSON-able facts; sets of them are united over the ranks.
        digest: SHA-256 of the output columns; empty without output.
        seconds: Time spent in the node function and in moving rows.
        logs: Log records of the function.
        facts: Lengths and groups of the output rows; ``None`` for rows without groups.
        usage: Bytes that this rank moved since its last result, and its memory.
        core_time: Part of the seconds on cores, and without one.
    """

    shard: ShardRef | None
    metrics: dict[str, Metric]
    info: dict[str, Any]
    digest: str
    seconds: float
    logs: tuple[LogLine, ...] = ()
    facts: RowFacts | None = None
    usage: Usage = Usage()
    core_time: CoreTime = field(default_factory=CoreTime)


@dataclass(frozen=True, kw_only=True)
class NodeReport(Rows):
    """Answers of all ranks, merged.

    Attributes:
        metrics: Metrics, merged by their reductions.
        info: Facts from rank 0; those that are sets are united over the ranks, as sorted lists.
        digests: SHA-256 of each shard.
        seconds: Time of the slowest rank.
        logs: Log records of all ranks that pass rows on, in order of time.
        usage: Bytes that all ranks moved, and the memory of the largest.
        core_time: CPU time of all ranks, and how much sooner the last rank would have finished if each had a core.
    """

    metrics: dict[str, Metric]
    info: dict[str, Any]
    digests: tuple[str, ...]
    seconds: float
    logs: tuple[LogLine, ...]
    usage: Usage = Usage()
    core_time: CoreTime = field(default_factory=CoreTime)


@dataclass(frozen=True)
class Following:
    """A node that runs in the same call as one before it.

    Attributes:
        work: The node.
        parents: Its parents: ids of nodes of the same call, or reports of nodes that are done.
    """

    work: NodeWork
    parents: tuple[str | NodeReport, ...]
