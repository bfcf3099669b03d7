"""Single groups that a test asks a :class:`~embodyflow.workers.rank.group_player.GroupPlayer` for, without Ray."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.data.tables import Table
from embodyflow.workers.calls import GroupCall


class Memory:
    """A buffer in this process, in which all versions of a policy have the same weights."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.rows: dict[str, Table] = {}
        self._weights = weights
        self.num_loads = 0

    def get_weights(self, weights: WeightsRef) -> Mapping[str, np.ndarray]:
        self.num_loads += 1
        return self._weights

    def put(self, shard_id: str, rows: Table) -> ShardRef:
        self.rows[shard_id] = rows
        return ShardRef(shard_id, "here", len(rows["uid"]))


def call(folder: Path, group: int, attempt: int = 0, version: int = 3, stream: int = 1) -> GroupCall:
    ticket = Ticket(group, attempt, version)
    place = str(folder / "stream" / "rollout" / str(group))
    weights = {version: WeightsRef(ShardRef("weights", "here", 1))}
    return GroupCall("rollout", ticket, 0, place, weights, num_versions=2, stream=stream, timeout=60.0)
