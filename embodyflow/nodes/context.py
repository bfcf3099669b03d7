"""What a node function knows about its call besides the batch: the type of its keyword ``call``."""

from pathlib import Path
from typing import Protocol

from embodyflow.data.plans.row_plan import Index
from embodyflow.data.rows_file import Journal
from embodyflow.data.segment import Segment


class NodeContext(Protocol):
    """One node of the graph on one rank.

    A random draw in a node function is seeded by :func:`embodyflow.seeding.derive_seed` of ``seed``, ``iteration``,
    ``node_id`` and the row, so a repeated call makes the same draws.
    """

    @property
    def node_id(self) -> str:
        """Name of the node in its graph, or of work outside a graph (``evaluate_greedy``)."""

    @property
    def iteration(self) -> int:
        """Index of the iteration, from 1; 0 before the first."""

    @property
    def seed(self) -> int:
        """Seed of the run."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that rollout workers act with in this iteration."""

    @property
    def positions(self) -> Index:
        """Positions of this rank's rows in the whole batch, int64 [N]."""

    @property
    def total_rows(self) -> int:
        """Number of rows in the whole batch, over all ranks."""

    @property
    def segment(self) -> Segment | None:
        """Segment that a node samples which runs once per version of the policy; ``None`` for a node that runs once."""

    @property
    def num_ranks(self) -> int | None:
        """Number of ranks that run the node, the first ones of the group; ``None`` is all of them."""

    @property
    def run_folder(self) -> Path | None:
        """Folder of the run; ``None`` for work outside the graph."""

    def journal(self, rank: int, part: int = 0) -> Journal | None:
        """Return the file that keeps pieces of a rank's rows as they are made; ``None`` for a node that keeps none.

        Args:
            rank: Rank of the worker.
            part: Index of the batch of rows, for a node that makes several.
        """

    def surplus(self, rank: int) -> tuple[Journal, Journal] | None:
        """Return the files with the rows left over by the previous iteration and by this one, in this order.

        ``None`` for a node whose rows are not kept on disk.
        """
