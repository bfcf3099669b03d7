from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.plans.balance import balance
from embodyflow.data.plans.partition import attention_cost, imbalance
from embodyflow.data.plans.row_plan import RankInput, ShardRef

NODES = "abc"


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw arguments of ``balance``: shards and ranks on any nodes, any costs, with or without groups."""
    counts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    total = sum(counts)
    groups = draw(st.none() | st.lists(st.integers(0, 5), min_size=total, max_size=total))
    return {
        "shards": [ShardRef(f"s{i}", draw(st.sampled_from(NODES)), count) for i, count in enumerate(counts)],
        "costs": draw(st.lists(st.integers(0, 100), min_size=total, max_size=total)),
        "hosts": draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=7)),
        "groups": groups,
    }


def rows_of(part: RankInput) -> list[tuple[str, int]]:
    return [(p.shard.shard_id, row) for p in part.slices for row in np.arange(p.shard.num_rows)[p.index].tolist()]


def all_rows(shards: list[ShardRef]) -> list[tuple[str, int]]:
    return [(shard.shard_id, row) for shard in shards for row in range(shard.num_rows)]


def loads_of(parts: list[RankInput], shards: list[ShardRef], costs: Any) -> list[float]:
    cost = dict(zip(all_rows(shards), costs, strict=True))
    return [sum(cost[row] for row in rows_of(part)) for part in parts]


def moved(parts: list[RankInput], hosts: list[str]) -> int:
    return sum(
        len(np.arange(p.shard.num_rows)[p.index])
        for part, host in zip(parts, hosts, strict=True)
        for p in part.slices
        if p.shard.host != host
    )


@given(layouts())
def test_no_row_is_lost_or_duplicated(layout: dict[str, Any]) -> None:
    parts = balance(**layout)
    assert len(parts) == len(layout["hosts"])
    read = [row for part in parts for row in rows_of(part)]
    assert Counter(read) == Counter(all_rows(layout["shards"]))
    for part in parts:
        assert [all_rows(layout["shards"])[position] for position in part.positions] == rows_of(part)
        assert part.total_rows == len(read) and part.slices  # at least an empty piece, for its columns


@given(layouts())
def test_rows_of_one_rank_keep_the_order_of_the_source(layout: dict[str, Any]) -> None:
    position = {row: index for index, row in enumerate(all_rows(layout["shards"]))}
    for part in balance(**layout):
        positions = [position[row] for row in rows_of(part)]
        assert positions == sorted(positions)


@given(layouts())
def test_groups_stay_whole(layout: dict[str, Any]) -> None:
    rows = all_rows(layout["shards"])
    groups = dict(zip(rows, layout["groups"] or range(len(rows)), strict=True))
    homes = [{groups[row] for row in rows_of(part)} for part in balance(**layout)]
    assert all(not homes[i] & homes[j] for i in range(len(homes)) for j in range(i))


@given(layouts())
def test_plans_are_deterministic(layout: dict[str, Any]) -> None:
    first, again = (balance(**layout) for _ in range(2))
    assert [rows_of(part) for part in first] == [rows_of(part) for part in again]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.sampled_from(NODES), min_size=1, max_size=7))
def test_equal_costs_give_equal_counts(counts: list[int], hosts: list[str]) -> None:
    shards = [ShardRef(f"s{i}", NODES[i % 3], count) for i, count in enumerate(counts)]
    parts = balance(shards, np.ones(sum(counts)), hosts, tolerance=0.0)
    sizes = [len(rows_of(part)) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("num_nodes", [1, 4])
def test_ten_thousand_rows_of_log_normal_lengths_are_balanced_to_two_percent(num_nodes: int) -> None:
    costs = attention_cost(np.random.default_rng(1).lognormal(6.0, 0.8, 10_000))
    shards = [ShardRef(f"s{i}", f"n{i % num_nodes}", 1250) for i in range(8)]
    hosts = [f"n{i % num_nodes}" for i in range(8)]
    parts = balance(shards, costs, hosts)
    assert imbalance(loads_of(parts, shards, costs)) <= 0.02
    assert moved(parts, hosts) < 100  # a random assignment moves three quarters of 10,000


def test_rows_move_only_as_far_as_balance_needs() -> None:
    shards = [ShardRef("a", "a", 6), ShardRef("b", "b", 2)]
    parts = balance(shards, np.ones(8), ["a", "b"], tolerance=0.0)
    assert [len(rows_of(part)) for part in parts] == [4, 4]
    assert moved(parts, ["a", "b"]) == 2
    assert moved(balance(shards, np.ones(8), ["a", "a", "a", "b"], tolerance=0.0), ["a", "a", "a", "b"]) == 0


def test_a_node_without_ranks_loses_all_its_rows() -> None:
    parts = balance([ShardRef("a", "a", 3), ShardRef("z", "z", 3)], np.ones(6), ["a", "b"])
    assert sorted(len(rows_of(part)) for part in parts) == [3, 3]
    assert rows_of(parts[0]) == [("a", 0), ("a", 1), ("a", 2)]


def test_rows_kept_by_a_filter_are_rebalanced() -> None:
    shards = [ShardRef("a", "n", 7), ShardRef("b", "n", 0), ShardRef("c", "n", 2)]
    groups = [0, 0, 0, 1, 1, 1, 2, 3, 3]
    parts = balance(shards, [1.0] * 9, ["n"] * 3, groups)
    assert sorted(len(rows_of(part)) for part in parts) == [3, 3, 3]


@pytest.mark.parametrize(
    ("costs", "hosts", "groups"), [([1.0], ["n"], None), ([1.0, 1.0], [], None), ([1.0, 1.0], ["n"], [0])]
)
def test_mismatched_arguments_are_refused(costs: list[float], hosts: list[str], groups: Any) -> None:
    with pytest.raises(ValueError, match="for 2 rows on"):
        balance([ShardRef("a", "n", 2)], costs, hosts, groups)
