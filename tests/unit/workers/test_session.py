"""How a session plans calls and merges answers, with fake ranks and no processes."""

import asyncio
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from language_jobs import language_config

from embodyflow.config import RunConfig
from embodyflow.data.metrics import total
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.errors import WorkerLostError
from embodyflow.process.core_time import CoreTime
from embodyflow.workers import session as session_module
from embodyflow.workers.calls import GroupCall, LogLine, NodeCall, NodeReport, NodeResult, NodeWork, Published
from embodyflow.workers.membership import Membership
from embodyflow.workers.rows.layout import Layout
from embodyflow.workers.session import Session

WEIGHTS = WeightsRef(ShardRef("weights/7/0", "host", 1))


class Ranks:
    """Four ranks, two for each copy of a model, which pass on the rows they get."""

    ranks_per_copy = 2

    def __init__(self) -> None:
        self.calls: list[NodeCall] = []
        self.membership = Membership()

    def __len__(self) -> int:
        return 4

    async def run_node(self, calls: Sequence[NodeCall], *, beside_others: bool) -> list[NodeResult]:
        self.calls = list(calls)
        return [self._answer(rank, call) for rank, call in enumerate(calls)]

    async def call(self, method: str, version: int) -> list[Any]:
        assert method == "publish_weights"
        return [Published(ShardRef(f"weights/{version}/0", "host", 1), "digest"), None, None, None]

    def _answer(self, rank: int, call: NodeCall) -> NodeResult:
        num_rows = len(call.positions)
        shard = ShardRef(f"1/{call.node_id}/{rank}", "host", num_rows) if call.passes_rows_on else None
        digest, lines = f"digest {rank}" * call.passes_rows_on, (LogLine(20, float(rank), f"rank {rank}"),)
        return NodeResult(
            shard, {"rows": total(num_rows)}, {"rank": rank, "seen": {rank, 7}}, digest, seconds=float(rank), logs=lines
        )


def test_time_without_a_core_is_what_the_last_rank_would_save(tiny_config: Callable[..., RunConfig]) -> None:
    """Ranks take 0 to 3 s. The last one waits 2 s for a core, so that the third one, with 2 s, would be last."""
    queues = (0.0, 0.0, 0.0, 2.0)

    class Queued(Ranks):
        def _answer(self, rank: int, call: NodeCall) -> NodeResult:
            return replace(super()._answer(rank, call), core_time=CoreTime(0.5, queues[rank]))

    session = Session(tiny_config(), {"rollout": Queued()}, {})  # type: ignore[dict-item]
    report = asyncio.run(session.run_node(NodeWork("node", "f", "rollout", 1, needs_model=False)))
    assert (report.seconds, report.core_time) == (3.0, CoreTime(computing=2.0, queued=1.0))


@pytest.mark.parametrize(
    ("group", "needs_model", "checked"), [("trainer", True, True), ("trainer", False, False), ("rollout", True, False)]
)
def test_weights_are_compared_around_nodes_with_the_trainers_model(
    group: str, needs_model: bool, checked: bool, tiny_config: Callable[..., RunConfig]
) -> None:
    """Rollout workers have no hashes of their weights, and beside a node without a model another may train."""
    ranks = Ranks()
    session = Session(tiny_config(), {"rollout": ranks, "trainer": ranks}, {})  # type: ignore[dict-item]
    work = NodeWork("node", "f", group, 1, needs_model=needs_model, only_forward_compute=True)
    asyncio.run(session.run_node(work))
    assert {call.checks_weights for call in ranks.calls} == {checked}


@pytest.mark.parametrize(
    ("group", "needs_model", "sent"), [("rollout", True, True), ("rollout", False, False), ("trainer", True, False)]
)
def test_new_weights_go_to_rollout_nodes_with_a_model(
    group: str, needs_model: bool, sent: bool, tiny_config: Callable[..., RunConfig]
) -> None:
    """Nodes without a model run beside others, and two that load weights at once would mix them up."""
    rollout, trainer = Ranks(), Ranks()
    session = Session(tiny_config(), {"rollout": rollout, "trainer": trainer}, {})  # type: ignore[dict-item]
    asyncio.run(session.publish_weights(7))
    asyncio.run(session.run_node(NodeWork("node", "f", group, 1, needs_model=needs_model)))
    calls = {"rollout": rollout, "trainer": trainer}[group].calls
    assert {call.weights for call in calls} == {WEIGHTS if sent else None}
    assert {call.policy_version for call in calls} == {7}


def test_weights_are_kept_as_long_as_a_rollout_may_act_with_them(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, freed = Ranks(), []
    config = tiny_config("rollout.max_staleness=2", "algorithm.old_log_probs=proximal")
    session = Session(config, {"rollout": rollout, "trainer": Ranks()}, {})  # type: ignore[dict-item]

    async def free(prefix: str) -> None:
        freed.append(prefix)

    monkeypatch.setattr(session, "free", free)

    def acted_with(version: int | None) -> set[tuple[str, int]]:
        asyncio.run(session.run_node(NodeWork("node", "f", "rollout", 1, policy_version=version)))
        weights = [call.weights for call in rollout.calls]
        assert None not in weights
        return {
            (each.own.shard_id, call.policy_version) for each, call in zip(weights, rollout.calls, strict=True) if each
        }

    for version in (9, 10, 11):
        asyncio.run(session.publish_weights(version))
    assert [acted_with(version) for version in (9, 10, None)] == [{(f"weights/{v}/0", v)} for v in (9, 10, 11)]
    assert freed == []
    asyncio.run(session.publish_weights(12))
    assert freed == ["weights/9/"]
    with pytest.raises(RuntimeError, match="node node: the weights of version 9 are no longer kept"):
        acted_with(9)
    asyncio.run(session.publish_weights(12))  # again, by a restored trainer
    assert freed == ["weights/9/"]


def test_answers_of_ranks_with_the_same_rows_count_once(tiny_config: Callable[..., RunConfig]) -> None:
    ranks = Ranks()
    session = Session(tiny_config(), {"trainer": ranks}, {})  # type: ignore[dict-item]
    shards = tuple(ShardRef(f"1/rollout/{rank}", "host", 5) for rank in range(3))
    facts = {"metrics": {}, "info": {}, "digests": (), "seconds": 0.0, "logs": ()}
    rollout = NodeReport(node_id="rollout", group="rollout", shards=shards, **facts)
    first = asyncio.run(session.run_node(NodeWork("first", "f", "trainer", 1), [rollout]))
    assert [call.positions.tolist() for call in ranks.calls] == 2 * [[*range(7)]] + 2 * [[*range(7, 15)]]
    assert [call.passes_rows_on for call in ranks.calls] == [True, False, True, False]
    assert (first.metrics["rows"].value, first.num_rows, first.seconds) == (15, 15, 3.0)
    assert [shard.shard_id for shard in first.shards] == ["1/first/0", "1/first/2"]
    assert (first.digests, first.info) == (("digest 0", "digest 2"), {"rank": 0, "seen": [0, 2, 7]})
    assert [line.message for line in first.logs] == ["rank 0", "rank 2"]

    asyncio.run(session.run_node(NodeWork("second", "f", "trainer", 1), [first]))  # its rows stay on their ranks
    holders = [[piece.shard.shard_id for piece in call.parents[0].slices] for call in ranks.calls]
    assert holders == [["1/first/0"], ["1/first/0"], ["1/first/2"], ["1/first/2"]]
    everywhere = NodeWork("everywhere", "f", "trainer", 1, layout=Layout.REPLICATE)
    assert asyncio.run(session.run_node(everywhere, [first])).metrics["rows"].value == 30


def test_the_event_loop_runs_while_ray_starts_buffers(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray blocks that call once the head of the cluster is gone, and the watch on the cluster needs the loop."""
    may_start, calls = threading.Event(), []

    class Mended:
        async def mend(self, leaving: Container[str]) -> None:
            calls.append("mend")

        async def connect(self) -> None:
            calls.append("connect")

    def start_buffers(*_: Any) -> dict[str, Any]:
        assert may_start.wait(20.0), "the loop was blocked"
        return {"another node": None}

    async def freed(*_: Any) -> None:
        calls.append("free")

    async def mend() -> None:
        asyncio.get_running_loop().call_later(0.05, may_start.set)
        await Session(tiny_config(), {"trainer": Mended()}, {}).mend()  # type: ignore[dict-item]

    monkeypatch.setattr(session_module, "start_buffers", start_buffers)
    monkeypatch.setattr(session_module, "call_buffers", freed)
    asyncio.run(mend())
    assert calls == ["mend", "connect", "free"]


class PlayingRanks(Ranks):
    """Ranks that play a group until an event, and that note the versions that a session offers."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[set[int]] = []
        self.ends = asyncio.Event()
        self.is_lost = False

    async def call(self, method: str, version: Any) -> list[Any]:
        if method == "publish_weights":
            return await super().call(method, version)
        assert method == "offer_weights"
        if self.is_lost:
            raise WorkerLostError("a worker of the rollout group is gone")
        self.offered.append({*version})
        return []

    async def play_group(self, rank: int, new_call: Callable[[], GroupCall]) -> NodeResult:
        before = {*new_call().weights}
        await self.ends.wait()
        return NodeResult(None, {}, {"before": before, "after": {*new_call().weights}}, "", 0.0)


def test_all_versions_since_a_group_began_are_offered_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lost rank's successor repeats the group with all of them."""
    words = ("rollout.mode=streaming", "rollout.order=first_ready", "rollout.interrupt.when=published")
    config = language_config(*words, "rollout.max_staleness=1", "algorithm.old_log_probs=proximal")

    async def play() -> None:
        ranks, freed = PlayingRanks(), list[str]()
        session = Session(config, {"rollout": ranks, "trainer": Ranks()}, {})  # type: ignore[dict-item]

        async def free(prefix: str) -> None:
            freed.append(prefix)

        monkeypatch.setattr(session, "free", free)
        await session.publish_weights(0)
        await asyncio.gather(*session._offers)
        playing = asyncio.create_task(session.play_group(0, "rollout", Ticket(0, 0, 0), tmp_path))
        await asyncio.sleep(0)
        for version in (1, 2, 3):
            ranks.is_lost = version == 2
            await session.publish_weights(version)
            await asyncio.gather(*session._offers)
        assert ranks.offered == [{0}, {0, 1}, {0, 1, 2, 3}] and freed == []
        ranks.ends.set()
        assert (await playing).info == {"before": {0}, "after": {0, 1, 2, 3}}
        await session.publish_weights(4)
        assert sorted(freed) == ["weights/0/", "weights/1/", "weights/2/"]

    asyncio.run(play())


class Readers:
    """Rollout ranks that read rows from disk in turns."""

    def __init__(self, number: int) -> None:
        self._number, self.membership = number, Membership()
        self.read: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return self._number

    async def call_in_turns(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert method == "recall"
        self.read = [(number, digest) for *_, number, digest in calls]
        return [(ShardRef(f"{iteration}/{node}/{number}", "here", 1), None) for node, iteration, _, number, _ in calls]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_rows_are_recalled_whatever_the_number_of_ranks(number: int, tiny_config: Callable[..., RunConfig]) -> None:
    readers = Readers(number)
    session = Session(tiny_config(), {"rollout": readers}, {})  # type: ignore[dict-item]
    kept = NodeReport(
        node_id="rollout", group="rollout", shards=(), metrics={}, info={}, digests=("a", "b"), seconds=0.0, logs=()
    )
    report = asyncio.run(session.recall(NodeWork("rollout", "f", "rollout", 1, stage="s"), kept))
    assert readers.read == [(0, "a"), (1, "b")]
    assert [shard.shard_id for shard in report.shards] == ["1/rollout/0", "1/rollout/1"]


def test_a_node_may_run_on_the_first_ranks_alone(tiny_config: Callable[..., RunConfig]) -> None:
    ranks = Ranks()
    ranks.ranks_per_copy = 1
    session = Session(tiny_config(), {"rollout": ranks}, {})  # type: ignore[dict-item]
    for number, calls in ((3, 3), (None, 4), (7, 4)):
        asyncio.run(session.run_node(NodeWork("evaluate", "f", "rollout", 1, num_ranks=number)))
        assert len(ranks.calls) == calls and {call.num_ranks for call in ranks.calls} == {number}
