"""The rows that ranks get, planned from reports made by hand, without processes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.padding import facts_of
from embodyflow.data.plans.row_plan import RankInput, RowFacts, ShardRef
from embodyflow.workers.rows.layout import Layout, Rows, join_facts, order_of, plan_inputs


def output(node_id: str, group: str, counts: Sequence[int], facts: RowFacts | None = None) -> Rows:
    shards = tuple(ShardRef(f"{node_id}/{i}", "host", count) for i, count in enumerate(counts))
    return Rows(node_id=node_id, group=group, shards=shards, facts=facts)


def rows_of(part: RankInput) -> list[tuple[str, int]]:
    return [(p.shard.shard_id, row) for p in part.slices for row in np.arange(p.shard.num_rows)[p.index].tolist()]


def read(node: Rows, parts: Sequence[RankInput]) -> list[list[int]]:
    """Return the positions that each rank reads, after checking them against the rows it would fetch."""
    rows = [(shard.shard_id, row) for shard in node.shards for row in range(shard.num_rows)]
    known = dict(zip(rows, range(len(rows)) if node.order is None else node.order.tolist(), strict=True))
    ranks = [[known[row] for row in rows_of(part)] for part in parts]
    assert [part.positions.tolist() for part in parts] == ranks
    return ranks


def passed_on(node_id: str, group: str, parts: Sequence[RankInput]) -> Rows:
    """Return the report of a node that keeps its rows."""
    shards = tuple(ShardRef(f"{node_id}/{i}", "host", len(part.positions)) for i, part in enumerate(parts))
    return Rows(node_id=node_id, group=group, shards=shards, order=order_of(parts, shards))


def responses(lengths: Sequence[int], group_size: int) -> RowFacts:
    return RowFacts(np.array(lengths), np.arange(len(lengths)) // group_size)


def test_long_responses_are_spread_over_the_trainers_ranks() -> None:
    lengths = [900, 100, 50, 50, 60, 40, 500, 400]
    rollout = output("rollout", "rollout", [4, 4], responses(lengths, group_size=1))
    [parts], metrics = plan_inputs("old_log_prob", Layout.SPLIT, "trainer", 2, [rollout])
    ranks = read(rollout, parts)
    assert sorted(ranks[0] + ranks[1]) == list(range(8))
    loads = [sum(lengths[row] for row in rank) for rank in ranks]
    assert metrics["balance/token_imbalance"].value == pytest.approx(max(loads) / np.mean(loads) - 1)
    assert max(loads) / min(loads) < 1.03  # cut in the middle it would be 1100 and 1000, or worse


def test_siblings_stay_together() -> None:
    rollout = output("rollout", "rollout", [6], responses([9, 1, 9, 1, 9, 9], group_size=2))
    [parts], _ = plan_inputs("advantage", Layout.SPLIT, "trainer", 2, [rollout])
    ranks = read(rollout, parts)
    assert all({row ^ 1 for row in rank} == set(rank) for rank in ranks)


def episodes(groups: Sequence[int]) -> RowFacts | None:
    return facts_of({"group_id": np.array(groups)})


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "cut"),
    [
        ([4, 4, 4], 2, [4, 8]),
        ([4, 4, 4, 4], 2, [8, 8]),  # the same as without groups
        ([1, 1, 1, 1, 1], 3, [1, 2, 2]),
        ([4, 4, 4], 4, [4, 0, 4, 4]),
        ([1, 6, 1], 2, [1, 7]),
        ([], 2, [0, 0]),
    ],
)
def test_episodes_are_cut_between_their_groups(sizes: list[int], num_ranks: int, cut: list[int]) -> None:
    groups = [7 - index for index, size in enumerate(sizes) for _ in range(size)]
    sampling = output("sampling", "rollout", [len(groups)], episodes(groups))
    [parts], metrics = plan_inputs("advantage", Layout.SPLIT, "trainer", num_ranks, [sampling])
    bounds = np.cumsum([0, *cut]).tolist()
    assert read(sampling, parts) == [[*range(*bound)] for bound in pairwise(bounds)] and metrics == {}
    assert all(part.slices and part.total_rows == len(groups) for part in parts)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.booleans(), st.integers(1, 4), st.integers(1, 4))
def test_groups_stay_whole_however_often_rows_move(groups: list[int], differ: bool, first: int, second: int) -> None:
    """Also if a group's rows are not adjacent, and if the first parent reports no groups."""
    facts = RowFacts(np.arange(1, len(groups) + 1), np.array(groups)) if differ else episodes(groups)
    rows = output("rollout", "rollout", [len(groups)], facts)
    progress = output("progress", "rollout", [len(groups)])
    for group, num_ranks in (("trainer", first), ("rollout", second), ("trainer", first)):
        parents = [rows] if rows.order is not None else [progress, rows]
        parts = plan_inputs("node", Layout.SPLIT, group, num_ranks, parents)[0][-1]
        ranks = read(rows, parts)
        assert sorted(row for rank in ranks for row in rank) == list(range(len(groups)))
        held = [{groups[row] for row in rank} for rank in ranks]
        assert sum(map(len, held)) == len(set(groups)), "a group is on two ranks"
        positions = np.concatenate([part.positions for part in parts])
        lengths = None if facts is None or facts.num_tokens is None else facts.num_tokens[positions]
        moved = passed_on("node", group, parts)
        rows = replace(moved, facts=RowFacts(lengths, np.array(groups)[positions]))


def test_rows_of_equal_length_are_cut_in_order() -> None:
    rollout = output("rollout", "rollout", [3, 5])
    [parts], metrics = plan_inputs("old_log_prob", Layout.SPLIT, "trainer", 2, [rollout])
    assert read(rollout, parts) == [[0, 1, 2, 3], [4, 5, 6, 7]] and metrics == {}


@given(st.lists(st.integers(1, 999), min_size=1, max_size=24), st.integers(1, 4), st.integers(1, 4), st.data())
def test_branches_on_different_groups_meet_in_the_same_rows(
    lengths: list[int], num_sources: int, num_ranks: int, data: st.DataObject
) -> None:
    """rollout → old_log_prob on the trainer, beside rollout → reward where it is; both → train_actor, then → report."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), min_size=num_sources - 1, max_size=num_sources - 1)))
    counts = np.diff([0, *cuts, len(lengths)]).tolist()
    rollout = output("rollout", "rollout", counts, responses(lengths, group_size=1))
    [parts], _ = plan_inputs("old_log_prob", Layout.SPLIT, "trainer", num_ranks, [rollout])
    old_log_prob = passed_on("old_log_prob", "trainer", parts)
    [parts], _ = plan_inputs("reward", Layout.SPLIT, "rollout", num_sources, [rollout])
    reward = passed_on("reward", "rollout", parts)
    for parents in ([old_log_prob, reward], [reward, old_log_prob]):
        inputs, _ = plan_inputs("train_actor", Layout.SPLIT, "trainer", num_ranks, parents)
        ranks = [[sorted(rows) for rows in read(parent, parts)] for parent, parts in zip(parents, inputs, strict=True)]
        assert ranks[0] == ranks[1]
        assert sorted(row for rank in ranks[0] for row in rank) == list(range(len(lengths)))
    [parts], _ = plan_inputs("again", Layout.SPLIT, "rollout", num_sources + 1, [old_log_prob])
    again = passed_on("again", "rollout", parts)
    beside = output("beside", "rollout", [len(lengths)])
    inputs, _ = plan_inputs("compare", Layout.SPLIT, "rollout", num_sources + 1, [again, beside])
    assert [sorted(rank) for rank in read(again, inputs[0])] == [sorted(rank) for rank in read(beside, inputs[1])]
    [back], _ = plan_inputs("report", Layout.SPLIT, "rollout", num_sources + 1, [old_log_prob])
    lows_and_highs = [(min(rank), max(rank)) for rank in map(sorted, read(old_log_prob, back)) if rank]
    assert lows_and_highs == sorted(lows_and_highs)  # in the order of the whole batch again


def test_a_parent_that_passes_no_rows_on_is_only_waited_for() -> None:
    rollout, fit = output("rollout", "rollout", [3, 5]), output("fit", "trainer", [])
    for parents in ([rollout, fit], [fit, rollout]):
        inputs, _ = plan_inputs("train_actor", Layout.SPLIT, "trainer", 2, parents)
        rows = dict(zip((parent.node_id for parent in parents), inputs, strict=True))
        assert read(rollout, rows["rollout"]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert [part.slices for part in rows["fit"]] == [(), ()]
    [[nothing]], _ = plan_inputs("train_actor", Layout.SPLIT, "trainer", 1, [fit])
    assert nothing.slices == () and nothing.total_rows == 0


def test_a_filter_starts_a_new_order() -> None:
    rollout = output("rollout", "rollout", [4, 4], responses([5] * 8, group_size=1))
    [parts], _ = plan_inputs("filter", Layout.SPLIT, "trainer", 2, [rollout])
    kept = (ShardRef("filter/0", "host", 3), ShardRef("filter/1", "host", 4))
    assert order_of(parts, kept) is None


def test_parents_of_different_numbers_of_rows_are_refused() -> None:
    parents = [output("a", "rollout", [2]), output("b", "rollout", [3])]
    with pytest.raises(ValueError, match=r"node c: its parents pass on different numbers of rows: \{'a': 2, 'b': 3\}"):
        plan_inputs("c", Layout.SPLIT, "trainer", 1, parents)


def test_facts_are_known_of_all_rows_or_of_none() -> None:
    one, other = responses([3, 4], 1), responses([5], 1)
    joined = join_facts([one, other])
    assert joined is not None and joined.num_tokens.tolist() == [3, 4, 5]
    assert join_facts([one, None]) is None and join_facts([]) is None
