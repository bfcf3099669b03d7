"""The rows of a rollout worker: whole groups, with ids that are unique in a run."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from embodyflow.config.grouped import GroupedConfig
from embodyflow.data.metrics import Metric
from embodyflow.errors import ConfigError
from embodyflow.process.determinism import use_deterministic_kernels

REROLL_STRIDE = 2**40
"""Between the ids of an iteration's rows and those of its re-rolled ones: more than a run has rows."""


@dataclass(frozen=True)
class Place:
    """A row to be gathered.

    Attributes:
        row: position in the whole batch, over all workers and rounds; names the row's random draws.
        uid, group_id: see :mod:`embodyflow.types`.
        group: position of its group in the round.
    """

    row: int
    uid: int
    group_id: int
    group: int


def places(config: GroupedConfig, rank: int, world_size: int, iteration: int, reroll: int) -> Iterator[Place]:
    """Yield a rank's rows of an iteration: those of round 0, or of a further round of as many groups."""
    rollout, num_rows = config.rollout, config.rows_per_iteration
    per_rank = rollout.num_groups // world_size
    for group in range(rank * per_rank, (rank + 1) * per_rank):
        for sibling in range(rollout.group_size):
            position = group * rollout.group_size + sibling
            yield Place(
                row=reroll * num_rows + position,
                uid=reroll * REROLL_STRIDE + iteration * num_rows + position,
                group_id=reroll * REROLL_STRIDE + iteration * rollout.num_groups + group,
                group=group,
            )


class GroupRollout:
    """What rollout engines of grouped rows share.

    Args:
        config: of the run.
        rank: of this worker in its group.
        world_size: workers in the group.
    """

    def __init__(self, config: GroupedConfig, rank: int, world_size: int) -> None:
        torch.set_num_threads(1)
        use_deterministic_kernels(config.cluster.device)
        self.rank, self.world_size = rank, world_size
        self._advantage = config.algorithm.advantage

    def fault_metrics(self) -> dict[str, Metric]:
        """Count what failed since the last call and was made good, of which the policy knows nothing."""
        return {}

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over the ranks, of which there must be one: rollout workers do not talk.

        Raises:
            ConfigError: there are more.
        """
        if self.world_size > 1:
            raise ConfigError(
                f"rollout.num_workers={self.world_size}: algorithm.advantage={self._advantage} needs sums over all "
                "rows, which rollout workers cannot take; allowed is 1, or the node on the trainer group"
            )
        return tensor
