import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.surplus import draw_surplus


def draw(groups: list[int], versions: list[int], num_rows: int, oldest: int) -> tuple[list[int], list[int]]:
    taken, left = draw_surplus(groups, versions, num_rows, oldest)
    return taken.tolist(), left.tolist()


def test_the_groups_that_waited_longest_go_first_and_the_others_keep_waiting() -> None:
    assert draw([3, 3, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1], 4, oldest=0) == ([0, 1, 2, 3], [4, 5])


def test_a_group_that_is_partly_too_stale_is_dropped() -> None:
    assert draw([1, 1, 2, 2], [1, 0, 1, 1], 9, oldest=1) == ([2, 3], [])


def test_groups_stay_whole_where_the_rows_of_several_are_mixed() -> None:
    assert draw([2, 1, 2, 1], [0, 0, 0, 0], 3, oldest=0) == ([0, 2], [1, 3])


def test_a_smaller_group_is_taken_where_a_larger_one_has_no_room() -> None:
    assert draw([1, 1, 1, 2], [0, 0, 0, 0], 2, oldest=0) == ([3], [0, 1, 2])


def test_no_waiting_rows_give_no_rows() -> None:
    assert draw([], [], 4, oldest=0) == ([], [])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12), st.integers(0, 9), st.integers(0, 3))
def test_every_row_is_taken_waits_or_is_too_stale(rows: list[tuple[int, int]], num_rows: int, oldest: int) -> None:
    groups, versions = np.array(rows, np.int64).reshape(-1, 2).T
    taken, left = draw_surplus(groups, versions, num_rows, oldest)
    stale = np.setdiff1d(np.arange(len(rows)), [*taken, *left])
    assert len(taken) + len(left) + len(stale) == len(rows) and len(taken) <= num_rows
    stale_groups = set(groups[versions < oldest].tolist())
    assert set(groups[stale].tolist()) == stale_groups
    for part in (taken, left):
        assert not set(groups[part].tolist()) & set(groups[np.setdiff1d(np.arange(len(rows)), part)].tolist())
