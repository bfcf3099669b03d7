"""What the control plane says to a rank and what it hears back: names and numbers, never a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodyflow.data.metrics import Metric
from embodyflow.data.row_plan import Index, RankInput, RowFacts, ShardRef
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
        passes_rows_on: what the rank makes is the group's output; its siblings that get the same rows make the same.
        weights: the policy weights the node must act with, where it acts with any but the trainer's own.
        policy_version: version of those weights.
        only_forward_compute: the node must leave the engine's weights as they are, which is checked.
        trains: it changes the engine's weights, which a rank does once: asked again, it answers as the first time.
        timeout: seconds it may take.
        stage: folder in which the node's rows are kept on disk; ``None`` keeps them in the buffer alone.
        next_stage: that of the next iteration.
    """

    node_id: str
    function: str
    iteration: int
    seed: int
    parents: tuple[RankInput, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    passes_rows_on: bool = True
    weights: ShardRef | None = None
    policy_version: int = 0
    only_forward_compute: bool = False
    trains: bool = False
    timeout: float = 600.0
    stage: str | None = None
    next_stage: str | None = None

    def journal(self, rank: int, part: int = 0) -> Journal | None:
        """Return where a rank keeps pieces of its rows as they are made; ``None`` for a node that keeps none.

        Args:
            rank: of the worker.
            part: of the node's rows, where it makes them in several.
        """
        return None if self.stage is None else Journal(Path(self.stage) / f"{rank}.{part}.parts")

    def surplus(self, rank: int) -> tuple[Journal, Journal] | None:
        """Return where a rank finds the rows that the iteration before left over, and where it leaves its own.

        ``None`` for a node whose rows are not kept.
        """
        if self.stage is None or self.next_stage is None:
            return None
        here, there = (Journal(Path(stage) / f"{rank}.surplus") for stage in (self.stage, self.next_stage))
        return here, there

    @property
    def run_folder(self) -> Path | None:
        """Return the run's folder; ``None`` for a node that keeps nothing there."""
        return None if self.stage is None else Path(self.stage).parents[2]

    @property
    def positions(self) -> Index:
        """Positions of the rank's rows in the whole batch, int64 [N]."""
        return self.rows.positions

    @property
    def total_rows(self) -> int:
        """Rows of the whole batch."""
        return self.rows.total_rows

    @property
    def rows(self) -> RankInput:
        """What the rank reads of the first parent that passes rows on: the others' rows are brought into its order."""
        return next((part for part in self.parents if part.slices), RankInput((), 0, 0))


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
        facts: of its output rows, where they have groups.
    """

    shard: ShardRef | None
    metrics: dict[str, Metric]
    info: dict[str, Any]
    digest: str
    seconds: float
    logs: tuple[LogLine, ...] = ()
    facts: RowFacts | None = None
