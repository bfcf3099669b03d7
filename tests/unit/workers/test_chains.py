"""Nodes that run in one call: what they read, what an error among them does, and when their reports count."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.errors import ShardLostError
from embodyflow.workers.calls import ChainCall, Following, NodeCall, NodeReport, NodeResult, NodeWork
from embodyflow.workers.chains import ReportsAhead, run_chain
from embodyflow.workers.membership import Membership
from embodyflow.workers.rows.layout import Rows
from embodyflow.workers.session import Session

OUTSIDE = NodeReport(
    node_id="rollout",
    group="rollout",
    shards=(ShardRef("1/rollout/0", "host", 2), ShardRef("1/rollout/1", "host", 3)),
    metrics={},
    info={},
    digests=(),
    seconds=0.0,
    logs=(),
)


class Rank:
    """The only rank of a trainer, which runs chains as a worker does and passes on the rows that it gets.

    Args:
        fails: Node that fails.
    """

    ranks_per_copy = 1

    def __init__(self, fails: str | None = None) -> None:
        self._fails = fails
        self.ran: list[NodeCall] = []
        self.errors: dict[str, Exception] = {}
        self.membership = Membership()

    def __len__(self) -> int:
        return 1

    async def run_node(self, calls: list[NodeCall], *, beside_others: bool) -> list[NodeResult]:
        if (error := self.errors.pop(calls[0].node_id, None)) is not None:
            raise error
        return [self._run(calls[0])]

    async def run_chain(self, chain: ChainCall) -> list[NodeResult]:
        return run_chain(chain, self._run, lambda call, error: self.errors.update({call.node_id: error}))

    def _run(self, call: NodeCall) -> NodeResult:
        self.ran.append(call)
        if call.node_id == self._fails:
            raise ShardLostError("1/value/0", "host")
        shard = ShardRef(f"1/{call.node_id}/0", "host", len(call.positions))
        return NodeResult(shard, {}, {}, "digest", seconds=0.0)


def work(name: str, *following: Following, **facts: Any) -> NodeWork:
    return NodeWork(name, "m:f", "trainer", 1, following=following, **facts)


def run(session: Session, node: NodeWork, parents: list[NodeReport]) -> NodeReport:
    return asyncio.run(session.run_node(node, parents))


FIRST = work(
    "value",
    Following(work("advantage", needs_model=False), ("value", OUTSIDE)),
    Following(work("train", trains=True), ("advantage",)),
)


@pytest.fixture
def session(tiny_config: Callable[..., RunConfig], request: pytest.FixtureRequest) -> tuple[Session, Rank]:
    rank = Rank(getattr(request, "param", None))
    return Session(tiny_config(), {"trainer": rank}, {}), rank  # type: ignore[dict-item]


def test_nodes_of_one_call_read_what_they_would_read_in_calls_of_their_own(session: tuple[Session, Rank]) -> None:
    chained, rank = session
    value = run(chained, FIRST, [OUTSIDE])
    in_one_call = rank.ran[:]
    assert [call.node_id for call in in_one_call] == ["value", "advantage", "train"]
    advantage = run(chained, FIRST.following[0].work, [value, OUTSIDE])
    train = run(chained, FIRST.following[1].work, [advantage])
    assert len(rank.ran) == 3  # the reports were there
    assert [value.num_rows, advantage.num_rows, train.num_rows] == [5, 5, 5]

    again = [run(chained, replace(FIRST, following=()), [OUTSIDE])]
    again.append(run(chained, FIRST.following[0].work, [again[0], OUTSIDE]))
    again.append(run(chained, FIRST.following[1].work, [again[1]]))
    assert again == [value, advantage, train]
    for ours, alone in zip(in_one_call, rank.ran[3:], strict=True):
        assert replace(ours, parents=()) == replace(alone, parents=())
        for part, expected in zip(ours.parents, alone.parents, strict=True):
            assert part.slices == expected.slices
            assert np.array_equal(part.positions, expected.positions)


def test_rows_that_were_recreated_are_read_again(session: tuple[Session, Rank]) -> None:
    chained, rank = session
    value = run(chained, FIRST, [OUTSIDE])
    run(chained, FIRST.following[0].work, [replace(value), OUTSIDE])
    assert [call.node_id for call in rank.ran] == ["value", "advantage", "train", "advantage"]


@pytest.mark.parametrize("session", ["advantage"], indirect=True)
def test_an_error_is_raised_by_the_node_that_failed(session: tuple[Session, Rank]) -> None:
    chained, rank = session
    value = run(chained, FIRST, [OUTSIDE])
    assert [call.node_id for call in rank.ran] == ["value", "advantage"]  # nothing ran after it
    with pytest.raises(ShardLostError):
        run(chained, FIRST.following[0].work, [value, OUTSIDE])
    assert len(rank.ran) == 2


@pytest.mark.parametrize("session", ["value"], indirect=True)
def test_an_error_of_the_first_node_is_its_own(session: tuple[Session, Rank]) -> None:
    chained, rank = session
    with pytest.raises(ShardLostError):
        run(chained, FIRST, [OUTSIDE])
    assert [call.node_id for call in rank.ran] == ["value"] and not rank.errors


def test_reports_of_earlier_iterations_are_forgotten() -> None:
    kept = ReportsAhead()
    kept.keep(work("value"), [OUTSIDE], OUTSIDE)
    kept.keep(replace(work("value"), iteration=2), [OUTSIDE], OUTSIDE)
    assert kept.take(work("value"), [OUTSIDE]) is None
    assert kept.take(replace(work("value"), iteration=2), [OUTSIDE]) is OUTSIDE
    assert kept.take(replace(work("value"), iteration=2), [OUTSIDE]) is None  # once


def test_a_chain_names_its_nodes_and_has_the_time_of_all() -> None:
    calls = [NodeCall(work(name), 7, timeout=2.0) for name in ("value", "advantage")]
    chain = ChainCall("trainer", calls[0], ((calls[1], ("value",)),))
    assert (chain.node_id, chain.timeout) == ("value, advantage", 4.0)
    assert isinstance(OUTSIDE, Rows)
