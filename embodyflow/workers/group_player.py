"""Single groups on a rollout worker: engines of several versions of the policy, side by side."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric
from embodyflow.data.padding import facts_of, to_ragged
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import NodeTimeoutError
from embodyflow.process.durable_files import flush
from embodyflow.references import resolve
from embodyflow.workers.buffer_client import BufferClient
from embodyflow.workers.calls import GroupCall, NodeResult

if TYPE_CHECKING:  # torch, which the flow's process does without
    from embodyflow.nodes.engines import GroupEngine


@dataclass(eq=False)
class _Lane:
    """An engine that plays groups with one version of the policy; it loads another when it is idle."""

    engine: "GroupEngine"
    version: int = -1
    num_groups: int = 0


class GroupPlayer:
    """Plays groups, each in a thread of its caller, with the version of the policy that it asks for.

    Args:
        config: Run configuration.
        buffer: This rank's view of the buffers.
    """

    def __init__(self, config: RunConfig, buffer: BufferClient) -> None:
        self._config, self._buffer = config, buffer
        self._lanes: list[_Lane] = []
        self._changed = threading.Condition()
        self._stream = 0

    def play(self, call: GroupCall) -> NodeResult:
        """Play a group, or read its rows from disk if an earlier attempt finished it; put them into the buffer.

        The rows are on disk when this returns.

        Raises:
            NodeTimeoutError: The group exceeded its time limit.
            RuntimeError: All engines play groups of other versions, or the group was abandoned.
            Exception: The engine raised it.
        """
        started = time.perf_counter()
        pieces = call.journal.read()
        metrics: dict[str, Metric] = {}
        if not pieces:
            rows, metrics = self._play(call)
            call.journal.append(rows)
            pieces = [rows]
        _flush(Path(call.folder))
        [rows] = pieces
        shard = self._buffer.put(call.shard_id, rows)
        seconds = time.perf_counter() - started
        return NodeResult(shard, metrics, {}, digest_of(rows), seconds, facts=facts_of(rows))

    def abandon(self, stream: int) -> None:
        """Cancel the groups of all streams before this one and wait until they have ended."""
        with self._changed:
            self._stream = stream
            for lane in self._lanes:
                if lane.version >= 0:
                    lane.engine.end()
                    lane.version = -1
            self._changed.wait_for(lambda: not any(lane.num_groups for lane in self._lanes))

    def _play(self, call: GroupCall) -> tuple[Table, dict[str, Metric]]:
        ticket = call.ticket
        with self._changed:
            if call.stream < self._stream:  # it waited for its turn meanwhile
                raise RuntimeError(f"group {ticket.group} was abandoned")
            lane = self._lane_of(call)
            lane.num_groups += 1
        try:
            columns = lane.engine.play_group(
                call.seed, call.node_id, ticket.group, ticket.attempt, call.journal, call.timeout
            )
            with self._changed:
                return to_ragged(columns), lane.engine.fault_metrics()
        except TimeoutError as error:
            raise NodeTimeoutError(f"group {ticket.group} took longer than {call.timeout:g} s") from error
        finally:
            with self._changed:
                lane.num_groups -= 1
                self._changed.notify_all()

    def _lane_of(self, call: GroupCall) -> _Lane:
        """Return the lane of a version, or load its weights into an idle engine."""
        version = call.ticket.version
        for lane in self._lanes:
            if lane.version == version:
                return lane
        lane = self._idle_lane(call.num_versions)
        if lane.version >= 0:
            lane.engine.end()
        lane.version = -1  # a load that fails leaves no usable version
        weights = {name: array[0] for name, array in self._buffer.get_shard(call.weights).items()}
        lane.engine.update_weights(weights, version)
        lane.engine.begin()
        lane.version = version
        return lane

    def _idle_lane(self, num_versions: int) -> _Lane:
        for lane in self._lanes:
            if not lane.num_groups:
                return lane
        if len(self._lanes) == num_versions:
            raise RuntimeError(f"{num_versions} versions of the policy play groups already")
        assert self._config.group_engine is not None
        # Ranks do not matter: a group names its rows.
        self._lanes.append(_Lane(resolve(self._config.group_engine)(self._config, 0, 1)))
        return self._lanes[-1]


def _flush(folder: Path) -> None:
    """Flush a group's rows, and the folders that lead to them."""
    for path in (*folder.glob("*.parts"), folder, *folder.parents[:3]):
        flush(path)
