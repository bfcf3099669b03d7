"""What the control plane says to a rank and what it hears back: names and numbers, never a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodyflow.data.metrics import Metric
from embodyflow.data.plan import RankInput, ShardRef
from embodyflow.data.rows_file import Journal


@dataclass(frozen=True)
class NodeCall:
    """One node of the graph, for one rank.

    Attributes:
        node_id: the node, or the name of work outside the graph (``evaluate_greedy``, ``publish``).
        function: ``"module:function"`` that the rank runs.
        iteration: index of the iteration, from 1; 0 before the first.
        seed: the run's seed; functions derive theirs from it, the iteration, the node and the row.
        parents: one entry per parent node: this rank's part of the parent's output.
        config: the node's own configuration.
        weights: the policy weights the node must act with, where it acts with any but the trainer's own.
        policy_version: version of those weights.
        only_forward_compute: the node must leave the engine's weights as they are.
        trains: it changes the engine's weights, which a rank does once: asked again, it answers as the first time.
        timeout: seconds it may take.
        stage: folder in which the node's rows are kept on disk; ``None`` keeps them in the buffer alone.
    """

    node_id: str
    function: str
    iteration: int
    seed: int
    parents: tuple[RankInput, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    weights: ShardRef | None = None
    policy_version: int = 0
    only_forward_compute: bool = False
    trains: bool = False
    timeout: float = 600.0
    stage: str | None = None

    def journal(self, rank: int, part: int = 0) -> Journal | None:
        """Return where a rank keeps pieces of its rows as they are made; ``None`` for a node that keeps none.

        Args:
            rank: of the worker.
            part: of the node's rows, where it makes them in several.
        """
        return None if self.stage is None else Journal(Path(self.stage) / f"{rank}.{part}.parts")

    @property
    def run_folder(self) -> Path | None:
        """Return the run's folder; ``None`` for a node that keeps nothing there."""
        return None if self.stage is None else Path(self.stage).parents[2]

    @property
    def offset(self) -> int:
        """Position of the rank's first row in the whole batch."""
        return self.parents[0].offset if self.parents else 0

    @property
    def total_rows(self) -> int:
        """Rows of the whole batch."""
        return self.parents[0].total_rows if self.parents else 0


@dataclass(frozen=True)
class LogLine:
    """One log record of a worker, to be shown in the flow run."""

    level: int
    created: float
    message: str


@dataclass(frozen=True)
class NodeResult:
    """What a rank answers.

    Attributes:
        shard: where its output rows lie; ``None`` for a node that passes no rows on.
        metrics: with their reductions.
        info: small JSON-able facts.
        digest: SHA-256 of the output columns, empty without output.
        seconds: spent in the node function and in moving its rows.
        logs: what the function logged.
    """

    shard: ShardRef | None
    metrics: dict[str, Metric]
    info: dict[str, Any]
    digest: str
    seconds: float
    logs: tuple[LogLine, ...] = ()
