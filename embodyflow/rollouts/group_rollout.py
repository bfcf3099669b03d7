"""Rows of a rollout worker: whole groups, with ids that are unique in a run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from embodyflow.config.grouped import GroupedConfig
from embodyflow.data.metrics import Metric
from embodyflow.data.plans.partition import Share, consecutive_share
from embodyflow.errors import ConfigError
from embodyflow.process.determinism import use_deterministic_kernels

REROLL_STRIDE = 2**40
"""Offset between the ids of an iteration's rows and its re-rolled rows; larger than the number of rows of a run."""


@dataclass(frozen=True)
class Place:
    """Position and ids of a row to collect.

    Attributes:
        row: Position in the whole batch, over all workers and rounds; part of the seed of the row.
        uid, group_id: Ids as in :mod:`embodyflow.types`.
        group: Position of the row's group in the round.
    """

    row: int
    uid: int
    group_id: int
    group: int


def places(config: GroupedConfig, rank: int, world_size: int, iteration: int, reroll: int) -> Iterator[Place]:
    """Yield a rank's rows of an iteration, for round 0 or for a further round of the same size.

    Ids and positions count groups over all ranks, and ranks have consecutive groups. So the batch, and the weights that
    are trained on it, do not depend on the number of ranks.
    """
    rollout, num_rows = config.rollout, config.rows_per_iteration
    for group in consecutive_share(rollout.num_groups, rank, world_size):
        for sibling in range(rollout.group_size):
            position = group * rollout.group_size + sibling
            yield Place(
                row=reroll * num_rows + position,
                uid=reroll * REROLL_STRIDE + iteration * num_rows + position,
                group_id=reroll * REROLL_STRIDE + iteration * rollout.num_groups + group,
                group=group,
            )


@dataclass(frozen=True)
class GroupRow:
    """A row of a group to play.

    Attributes:
        row: Position in the whole batch, over all workers; part of the seed of the row.
        uid, group_id: Ids as in :mod:`embodyflow.types`.
    """

    row: int
    uid: int
    group_id: int


RowT = TypeVar("RowT", bound=GroupRow)


def rows_of_group(
    config: GroupedConfig, index: int, attempt: int, rows_of: Callable[[int], Sequence[RowT]]
) -> tuple[int, list[RowT]]:
    """Return a group's iteration by its index and its rows, as if whole iterations were played.

    A group that is drawn again keeps its prompt or goal and gets other draws and ids. So groups that take long are not
    exchanged for others.

    Args:
        config: Run configuration.
        index: Index of the group in the run, from 0.
        attempt: Number of times that the group was drawn before.
        rows_of: Function from the index of an iteration, from 1, to all of its rows.
    """
    rollout, num_rows = config.rollout, config.rows_per_iteration
    before, place = divmod(index, rollout.num_groups)
    whole, stride = rows_of(before + 1), attempt * REROLL_STRIDE
    return before + 1, [
        replace(each, row=each.row + attempt * num_rows, uid=each.uid + stride, group_id=each.group_id + stride)
        for each in whole[place * rollout.group_size : (place + 1) * rollout.group_size]
    ]


def first_rows(group_ids: torch.Tensor) -> list[int]:
    """Return the position of the first row of each group, in ascending order.

    Args:
        group_ids: Group of each row, int64 [N].
    """
    _, positions = np.unique(group_ids.numpy(), return_index=True)
    return sorted(positions.tolist())


class GroupRollout:
    """Base class of rollout engines whose rows come in groups.

    Args:
        config: Run configuration.
        rank: Rank of this worker in its group.
        world_size: Number of workers in the group.
    """

    def __init__(self, config: GroupedConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        use_deterministic_kernels(config.cluster.device)
        self.rank, self.world_size = rank, world_size
        self._advantage = config.algorithm.advantage

    def resize(self, world_size: int) -> None:
        """Share the rows of the next iterations with so many workers in all."""
        self.world_size = world_size

    @property
    def own_share(self) -> Share:
        """This rank's share of evaluations and demonstrations."""
        return Share(self.rank, self.world_size)

    def fault_metrics(self) -> dict[str, Metric]:
        """Return the counts of recovered faults since the last call."""
        return {}

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over the ranks; there must be one rank, as rollout workers do not communicate.

        Raises:
            ConfigError: There is more than one rank.
        """
        if self.world_size > 1:
            raise ConfigError(
                f"rollout.num_workers={self.world_size}: algorithm.advantage={self._advantage} needs sums over all "
                "rows, which rollout workers cannot compute; allowed is 1, or put the node on the trainer group"
            )
        return tensor
