"""Single groups on a rollout worker, side by side."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodyflow.config import RunConfig
from embodyflow.data.metrics import Metric
from embodyflow.data.padding import facts_of, to_ragged
from embodyflow.data.plans.row_plan import WeightsRef
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import NodeTimeoutError
from embodyflow.process.files.durable_files import flush
from embodyflow.rollouts.streaming.swap_journal import SwapJournal
from embodyflow.workers.calls import GroupCall, NodeResult
from embodyflow.workers.rank.group_lanes import Lane, build_lanes
from embodyflow.workers.rows.buffer_client import BufferClient


class GroupPlayer:
    """Plays groups, each in a thread of its caller, with the version of the policy that it asks for.

    Args:
        config: Run configuration.
        buffer: This rank's view of the buffers.
    """

    def __init__(self, config: RunConfig, buffer: BufferClient) -> None:
        self._buffer, self._swaps = buffer, config.rollout.swaps_when_published
        self._lanes = build_lanes(config, buffer)
        self._changed = threading.Condition()
        self._stream = 0

    def play(self, call: GroupCall) -> NodeResult:
        """Play a group, or read its rows from disk if an earlier attempt finished it; put them into the buffer.

        The rows are on disk when this returns. Where rows go on with newer weights, ``swaps`` among the result's facts
        says where.

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
            if self._swaps:
                flush(call.swaps_path)  # rows count with their swaps only
            call.journal.append(rows)
            pieces = [rows]
        _flush(Path(call.folder))
        [rows] = pieces
        shard = self._buffer.put(call.shard_id, rows)
        info: dict[str, Any] = {"swaps": SwapJournal(call.swaps_path).swaps()} if self._swaps else {}
        seconds = time.perf_counter() - started
        return NodeResult(shard, metrics, info, digest_of(rows), seconds, facts=facts_of(rows))

    def offer(self, weights: Mapping[int, WeightsRef]) -> None:
        """Let groups go on with the newest of these versions, if they may."""
        with self._changed:
            self._lanes.offer(weights)

    def abandon(self, stream: int) -> None:
        """Cancel the groups of all streams before this one and wait until they have ended."""
        with self._changed:
            self._stream = stream
            self._lanes.end()
            self._changed.wait_for(lambda: not self._lanes.num_groups)

    def _play(self, call: GroupCall) -> tuple[Table, dict[str, Metric]]:
        ticket, lane = call.ticket, self._enter(call)
        try:
            if self._swaps:
                SwapJournal.create(call.swaps_path, ticket.version, call.swaps)
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

    def _enter(self, call: GroupCall) -> Lane:
        with self._changed:
            if call.stream < self._stream:  # it waited for its turn meanwhile
                raise RuntimeError(f"group {call.ticket.group} was abandoned")
            lane = self._lanes.lane_of(call)
            lane.num_groups += 1
            return lane


def _flush(folder: Path) -> None:
    """Flush a group's rows, and the folders that lead to them."""
    for path in (*folder.glob("*.parts"), folder, *folder.parents[:3]):
        flush(path)
