import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.plans.row_plan import (
    RankInput,
    ShardRef,
    cut_like,
    for_tensor_parallel,
    keep_layout,
    replicate,
    split_evenly,
)

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
RANKS = st.integers(1, 9)


def shards_of(counts: list[int]) -> list[ShardRef]:
    return [ShardRef(f"1/node/{rank}", "host", count) for rank, count in enumerate(counts)]


def rows_of(part: RankInput) -> list[tuple[str, int]]:
    return [(piece.shard.shard_id, row) for piece in part.slices for row in range(piece.start, piece.stop)]


def all_rows(counts: list[int]) -> list[tuple[str, int]]:
    return [(shard.shard_id, row) for shard in shards_of(counts) for row in range(shard.num_rows)]


@given(COUNTS, RANKS)
def test_splitting_keeps_every_row_once_and_in_order(counts: list[int], num_ranks: int) -> None:
    parts = split_evenly(shards_of(counts), num_ranks)
    assert len(parts) == num_ranks
    assert [row for part in parts for row in rows_of(part)] == all_rows(counts)
    sizes = [len(rows_of(part)) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(COUNTS, RANKS)
def test_an_offset_is_the_position_in_the_whole_batch(counts: list[int], num_ranks: int) -> None:
    shards = shards_of(counts)
    for part in (*split_evenly(shards, num_ranks), *keep_layout(shards), *replicate(shards, num_ranks)):
        rows = rows_of(part)
        assert part.total_rows == sum(counts)
        assert all_rows(counts)[part.offset : part.offset + len(rows)] == rows


@given(COUNTS, RANKS)
def test_every_rank_reads_at_least_an_empty_slice_for_its_columns(counts: list[int], num_ranks: int) -> None:
    shards = shards_of(counts)
    for part in (*split_evenly(shards, num_ranks), *keep_layout(shards), *replicate(shards, num_ranks)):
        assert part.slices
        assert all(0 <= piece.start <= piece.stop <= piece.shard.num_rows for piece in part.slices)


def test_splitting_by_hand() -> None:
    a, b, c = shards_of([3, 0, 4])
    first, second = split_evenly([a, b, c], 2)
    assert [(piece.shard, piece.start, piece.stop) for piece in first.slices] == [(a, 0, 3)]
    assert [(piece.shard, piece.start, piece.stop) for piece in second.slices] == [(c, 0, 4)]
    assert (first.offset, second.offset) == (0, 3)


@given(COUNTS)
def test_keeping_the_layout_moves_no_row(counts: list[int]) -> None:
    shards = shards_of(counts)
    for shard, part in zip(shards, keep_layout(shards), strict=True):
        assert rows_of(part) == [(shard.shard_id, row) for row in range(shard.num_rows)]


@given(COUNTS, RANKS)
def test_replicating_gives_every_rank_all_rows(counts: list[int], num_ranks: int) -> None:
    parts = replicate(shards_of(counts), num_ranks)
    assert [rows_of(part) for part in parts] == [all_rows(counts)] * num_ranks


@pytest.mark.parametrize("num_ranks", [0, -1])
def test_fewer_than_one_rank_is_refused(num_ranks: int) -> None:
    with pytest.raises(ValueError, match="num_ranks"):
        split_evenly(shards_of([1]), num_ranks)


def test_without_shards_every_rank_reads_nothing() -> None:
    nothing = RankInput((), 0, 0)
    assert split_evenly([], 2) == replicate([], 2) == [nothing, nothing]
    assert keep_layout([]) == []


def test_tensor_parallel_ranks_read_the_same_rows() -> None:
    first, second = split_evenly(shards_of([3, 1]), 2)
    assert for_tensor_parallel([first, second], 2) == [first, first, second, second]


@given(COUNTS, RANKS, st.data())
def test_a_batch_is_cut_at_the_positions_of_another(counts: list[int], num_ranks: int, data: st.DataObject) -> None:
    """A rank gets the same positions of two batches of equal size, wherever their rows are stored."""
    cuts = sorted(data.draw(st.lists(st.integers(0, sum(counts)), max_size=4)))
    others = [stop - start for start, stop in itertools.pairwise([0, *cuts, sum(counts)])]
    lead = split_evenly(shards_of(counts), num_ranks)
    for mine, theirs in zip(lead, cut_like(lead, shards_of(others)), strict=True):
        start, stop = mine.offset, mine.offset + len(rows_of(mine))
        assert rows_of(theirs) == all_rows(others)[start:stop]
        assert (theirs.offset, theirs.total_rows) == (mine.offset, mine.total_rows)
