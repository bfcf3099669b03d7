"""The stream of groups: workers play them one by one, and iterations take those that are due.

What the ledger says is what a recovered run trains on. With ``rollout.order=first_ready`` an iteration's groups are in
the ledger before the iteration trains on them; by index they follow from its index.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

from embodyflow.config.grouped import GroupedConfig
from embodyflow.data.metrics import Metric, maximum, mean, merge_metrics, total
from embodyflow.data.plans.row_plan import RowFacts
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Selection, Ticket
from embodyflow.errors import ShardLostError
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.streaming.admission import Admission, ByIndex, FirstReady, FirstReadyWithin, Sizes
from embodyflow.orchestration.run.streaming.room import Room
from embodyflow.record.episodes.group_rows import GroupRows
from embodyflow.workers.calls import STREAM, NodeReport, NodeResult, NodeWork
from embodyflow.workers.rows.layout import join_facts
from embodyflow.workers.session import Session

GATHER = "tasks:gather_groups"


class Stream:
    """Implements :class:`~embodyflow.orchestration.run.streaming.rollouts.Rollouts`.

    Args:
        config: Run configuration.
        session: Worker groups of the run.
        stages: Ledger and rows of iterations.
        groups: Rows of groups.
        turns: Order of the iterations in flight.
        node_id: Node that generates the rows of an iteration.
    """

    def __init__(
        self, config: GroupedConfig, session: Session, stages: Stages, groups: GroupRows, turns: Turns, node_id: str
    ) -> None:
        self._config, self._session, self._stages, self._groups = config, session, stages, groups
        self._turns, self._node_id = turns, node_id
        rollout = config.rollout
        self._sizes = Sizes(rollout.num_groups, rollout.max_staleness, config.iterations)
        self._following: asyncio.Task[None] | None = None
        self._plays: dict[Ticket, asyncio.Task[NodeResult]] = {}

    async def start(self, last: int) -> None:
        """Begin after a commit: with what the ledger names, and then with further groups."""
        await self.stop()
        await self._session.abandon_groups()
        self._groups.drop_after(last)
        rollout = self._config.rollout
        self._room = Room(self._session.num_rollout_workers, rollout.most_groups_in_flight, rollout.max_staleness + 1)
        self._selections: dict[int, Selection] = {}
        self._wanted: list[Ticket] = []  # groups to play before further ones
        self._errors: list[BaseException] = []
        self._freed: list[Ticket] = []
        self._swaps: dict[Ticket, tuple[Swap, ...]] = {}  # of groups that the ledger names
        self._changed = asyncio.Event()
        self._admission = self._go_on(last)
        self._following = asyncio.create_task(self._follow(last), name="stream")
        self._fill()

    async def stop(self) -> None:
        """Leave the groups in flight."""
        tasks = [*self._plays.values(), *([self._following] if self._following is not None else [])]
        self._plays, self._following = {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._turns.last_finished == self._config.iterations:
            self._groups.clear()

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport] = ()) -> NodeReport:
        """Run a node; for the rollout, wait for the groups of the iteration and gather their rows on the workers.

        Raises:
            Exception: A group failed. The next call plays it again.
        """
        if work.node_id != self._node_id:
            return await self._session.run_node(work, parents)
        selection = await self._select(work.iteration)
        results = [await self._result(ticket) for ticket in selection.groups]
        gather = replace(work, function=GATHER, needs_model=False)
        try:
            report = await self._session.run_node(gather, [_as_parent(work, results)])
        except ShardLostError:
            for ticket in selection.groups:  # the next call reads their rows from disk
                self._plays.pop(ticket, None)
            raise
        metrics = merge_metrics(result.metrics for result in results) | _stream_metrics(selection, results)
        return replace(report, metrics=report.metrics | metrics)

    async def leave_workers_from(self, number: int) -> None:
        """Wait until the groups that are played on the workers from rank ``number`` on have ended."""
        self._room.close_from(number)
        while not self._room.is_empty_from(number):
            await self._changed.wait()

    def use_workers(self, number: int) -> None:
        """Play groups on so many workers from now on."""
        self._room.open(number)
        self._fill()

    def _go_on(self, last: int) -> Admission:
        """Return the stream as it is after a commit."""
        selections: list[Selection] = []
        while (known := self._known(len(selections) + 1)) is not None:
            selections.append(known)
        rollout = self._config.rollout
        if rollout.order == "by_index":
            return ByIndex(self._sizes, last, selections)
        order = {"drop": FirstReady, "wait": FirstReadyWithin}[rollout.too_old]
        return order(self._sizes, last, selections)

    def _known(self, iteration: int) -> Selection | None:
        """Return the selection that was made for an iteration, or ``None``.

        By index, an iteration counts as selected once its rows are in the ledger; nothing plays them another time.
        """
        if self._config.rollout.order == "first_ready":
            return self._stages.selection(iteration)
        has_rows = iteration <= self._turns.last_finished or self._stages.has_rows(iteration, self._node_id)
        return ByIndex(self._sizes, 0).selection(iteration) if has_rows else None

    async def _select(self, iteration: int) -> Selection:
        """Return the groups of an iteration; if they do not follow from its index, they are in the ledger now."""
        while iteration > self._admission.num_selected:
            self._raise_errors()
            if (made := self._admission.select()) is None:
                await self._changed.wait()
                continue
            made = replace(made, swaps=self._swaps_of(made.groups))
            self._selections[made.iteration] = made
            self._freed += made.dropped
            if self._config.rollout.order == "first_ready":
                await self._stages.record_selection(made)
        selection = self._selections.get(iteration) or self._known(iteration)
        assert selection is not None, "an iteration without a selection of this process has one in the ledger"
        self._selections[iteration] = selection
        if self._config.rollout.swaps_when_published:
            self._swaps |= {ticket: selection.swaps.get(ticket, ()) for ticket in selection.groups}
        self._wanted += [each for each in selection.groups if each not in self._plays and each not in self._wanted]
        self._fill()
        return selection

    def _swaps_of(self, tickets: Sequence[Ticket]) -> dict[Ticket, tuple[Swap, ...]]:
        """Return the changes of weights within the rows of finished groups that have any."""
        found = {ticket: self._plays[ticket].result().info.get("swaps", ()) for ticket in tickets}
        return {ticket: swaps for ticket, swaps in found.items() if swaps}

    async def _result(self, ticket: Ticket) -> NodeResult:
        while ticket not in self._plays or not self._plays[ticket].done():
            self._raise_errors()
            await self._changed.wait()
        return self._plays[ticket].result()

    def _raise_errors(self) -> None:
        """Raise the first error of the groups that failed since the last call."""
        if self._errors:
            first, self._errors = self._errors[0], []
            raise first

    def _fill(self) -> None:
        """Start groups while workers have room for them."""
        while self._wanted:
            places = ((ticket, rank) for ticket in self._wanted if (rank := self._rank_for(ticket)) is not None)
            if (place := next(places, None)) is None:
                return
            self._wanted.remove(place[0])
            self._play(*place)
        while (upcoming := self._admission.upcoming()) is not None:
            if (rank := self._rank_for(upcoming)) is None:
                return
            self._admission.start(upcoming)
            self._play(upcoming, rank)

    def _rank_for(self, ticket: Ticket) -> int | None:
        """Return a worker with room for a group; ``None`` without one, or if a version of it is not published yet.

        A group that waited for a version on a worker could take the room of those which that version is trained on.
        """
        newest = max([ticket.version, *(swap.version for swap in self._swaps.get(ticket, ()))])
        return self._room.for_version(ticket.version) if newest <= self._turns.last_finished else None

    def _play(self, ticket: Ticket, rank: int) -> None:
        folder = self._groups.folder(self._node_id, ticket.group)
        self._room.enter(rank, ticket.version)
        play = self._session.play_group(rank, self._node_id, ticket, folder, self._swaps.get(ticket))
        task = self._plays[ticket] = asyncio.create_task(play, name=f"group-{ticket.name}")
        task.add_done_callback(lambda done: self._end(ticket, rank, done))

    def _end(self, ticket: Ticket, rank: int, task: asyncio.Task[NodeResult]) -> None:
        """Take note that a group has ended, unless the stream has left it."""
        if self._plays.get(ticket) is not task:
            return
        self._room.leave(rank, ticket.version)
        if (error := task.exception()) is not None:
            del self._plays[ticket]
            self._errors.append(error)
            self._wanted.append(ticket)  # for the case that the node is retried
        else:
            if self._admission.is_in_flight(ticket):
                self._admission.finish(ticket)
            self._fill()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self, last: int) -> None:
        """Start further groups as versions of the policy come, and forget groups that were trained."""
        try:
            for version in itertools.count(last + 1):
                await self._turns.wait_to_train(version + 1)
                self._admission.advance(version)
                self._fill()
                self._wake()
                await self._forget(version)
        except Exception as error:
            self._errors.append(error)
            self._wake()

    async def _forget(self, iteration: int) -> None:
        """Remove the groups of a finished iteration, and those that were dropped, from buffers and disk."""
        trained = self._selections.pop(iteration, None)
        tickets = [*self._freed, *(trained.groups if trained is not None else ())]
        self._freed = []
        for ticket in tickets:
            self._plays.pop(ticket, None)
            self._swaps.pop(ticket, None)
        await self._session.free(*(f"{STREAM}/{self._node_id}/{ticket.name}" for ticket in tickets))
        if trained is not None:
            await asyncio.to_thread(self._groups.drop, self._node_id, [ticket.group for ticket in trained.groups])


def _as_parent(work: NodeWork, results: Sequence[NodeResult]) -> NodeReport:
    """Return the groups as the output of a node, from which each rank reads consecutive groups."""
    facts = join_facts([result.facts for result in results])
    return NodeReport(
        node_id=work.node_id,
        group="rollout",
        shards=tuple(result.shard for result in results if result.shard is not None),
        facts=None if facts is None else RowFacts(None, facts.group_id),
        metrics={},
        info={},
        digests=(),
        seconds=0.0,
        logs=(),
    )


def _stream_metrics(selection: Selection, results: Sequence[NodeResult]) -> dict[str, Metric]:
    staleness = selection.staleness
    return {
        "stream/staleness": mean(sum(staleness) / len(staleness), len(staleness)),
        "stream/num_dropped": total(len(selection.dropped)),
        "perf/slowest_group_seconds": maximum(max(result.seconds for result in results)),
    }
