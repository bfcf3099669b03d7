"""Which rows a rollout worker gathers: whole groups, with ids that are unique in a run."""

from collections.abc import Iterator
from dataclasses import dataclass

from embodyflow.config.grouped import GroupedConfig

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
