import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.metrics import to_floats
from embodyflow.data.surplus import SurplusRows
from embodyflow.data.tables import Table


def rows(groups: list[int], version: int) -> Table:
    """Return two rows per group; a row's uid tells its group."""
    group_id = np.repeat(np.array(groups, np.int64), 2)
    return {
        "uid": group_id * 10 + np.tile([0, 1], len(groups)),
        "group_id": group_id,
        "policy_version": np.full(len(group_id), version),
    }


def uids(table: Table | None) -> list[int]:
    return [] if table is None else np.asarray(table["uid"]).tolist()


def test_what_is_not_taken_waits_and_comes_first_the_next_time() -> None:
    surplus = SurplusRows(max_staleness=1)
    surplus.add(rows([1, 2, 3], version=0))
    assert uids(surplus.take(4, policy_version=0)) == [10, 11, 20, 21]
    surplus.add(rows([4, 5], version=1))
    assert uids(surplus.take(4, policy_version=1)) == [30, 31, 40, 41]
    assert to_floats(surplus.metrics()) == {"surplus/num_expired": 0, "surplus/num_waiting": 2}


def test_rows_that_became_too_stale_are_dropped_and_counted_once() -> None:
    surplus = SurplusRows(max_staleness=1)
    surplus.add(rows([1, 2], version=0))
    surplus.add(rows([3], version=2))
    assert uids(surplus.take(100, policy_version=2)) == [30, 31]
    assert to_floats(surplus.metrics()) == {"surplus/num_expired": 4, "surplus/num_waiting": 0}
    assert to_floats(surplus.metrics())["surplus/num_expired"] == 0
    assert surplus.take(100, policy_version=2) is None


def test_groups_stay_whole_where_the_rows_of_several_are_mixed() -> None:
    surplus = SurplusRows(max_staleness=0)
    mixed = {name: np.asarray(column)[[2, 0, 3, 1]] for name, column in rows([1, 2], version=0).items()}
    surplus.add(mixed)
    assert uids(surplus.take(3, policy_version=0)) == [20, 21]
    assert len(surplus) == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=12), st.integers(0, 3))
def test_every_row_is_taken_waits_or_is_counted_as_expired(steps: list[tuple[int, int]], max_staleness: int) -> None:
    surplus, added, taken, group = SurplusRows(max_staleness), 0, [], 0
    for version, (num_groups, num_rows) in enumerate(steps):
        surplus.add(rows(list(range(group, group + num_groups)), version))
        group, added = group + num_groups, added + 2 * num_groups
        batch = surplus.take(num_rows, version)
        assert len(uids(batch)) <= num_rows
        if batch is not None:
            assert np.min(np.asarray(batch["policy_version"])) >= version - max_staleness
        taken += uids(batch)
    expired = to_floats(surplus.metrics())["surplus/num_expired"]
    assert len(set(taken)) == len(taken) and len(taken) + len(surplus) + expired == added
