import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.ragged import Ragged
from embodyflow.data.table_packing import Packing, unpack
from embodyflow.data.tables import concatenate, digest_of, join_columns, num_rows_of, select

ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=6)


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array(list(itertools.chain(*rows)), np.int64)
    return Ragged(values, np.array([len(row) for row in rows], np.int64))


def rows_of(column: Ragged) -> list[list[int]]:
    return [column[index].tolist() for index in range(len(column))]


@given(ROWS, st.data())
def test_rows_are_chosen_whole_and_in_the_order_asked_for(rows: list[list[int]], data: st.DataObject) -> None:
    column = ragged(rows)
    assert rows_of(column) == rows
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    assert rows_of(column[start:stop]) == rows[start:stop]
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    assert rows_of(column[np.array(index, np.int64)]) == [rows[i] for i in index]


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_parts_are_joined_row_after_row(parts: list[list[list[int]]]) -> None:
    joined = concatenate([{"tokens": ragged(part)} for part in parts])
    assert rows_of(joined["tokens"]) == list(itertools.chain(*parts))


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 2 values"):
        Ragged(np.zeros(2), np.array([1, 2]))


def test_a_nested_tensor_is_a_ragged_column_and_comes_back() -> None:
    tokens = torch.nested.nested_tensor([torch.arange(2), torch.arange(0), torch.arange(3)], layout=torch.jagged)
    table = to_columns(TensorDict({"uid": torch.arange(3), "tokens": tokens}, batch_size=[3]))
    assert rows_of(table["tokens"]) == [[0, 1], [], [0, 1, 2]]
    assert num_rows_of(table) == 3
    back = to_batch(select(table, np.array([2, 0])))
    assert [row.tolist() for row in back["tokens"].unbind()] == [[0, 1, 2], [0, 1]]


def test_the_digest_depends_on_row_boundaries() -> None:
    one, other = {"a": ragged([[1, 2], [3]])}, {"a": ragged([[1], [2, 3]])}
    assert digest_of(one) == digest_of({"a": ragged([[1, 2], [3]])}) != digest_of(other)


def test_parents_are_joined_with_their_ragged_columns() -> None:
    first = {"uid": np.array([1, 2]), "tokens": ragged([[1], [2, 2]])}
    second = {"uid": np.array([2, 1]), "tokens": ragged([[2, 2], [1]]), "scores": ragged([[5], []])}
    assert rows_of(join_columns([first, second])["scores"]) == [[], [5]]
    second["tokens"] = ragged([[2], [1, 2]])
    with pytest.raises(ValueError, match="'tokens' differs"):
        join_columns([first, second])


@given(ROWS, st.integers(1, 2**63 - 1))
def test_unpacking_gives_views_of_the_packed_table(rows: list[list[int]], key: int) -> None:
    table = {
        "tokens": ragged(rows),
        "image": np.arange(len(rows) * 6, dtype=np.uint8).reshape(len(rows), 2, 3),
        "success": np.ones(len(rows), np.bool_),
    }
    packing = Packing(table)
    memory = bytearray(packing.num_bytes)
    packing.write(memory, key)
    back = unpack(memory)
    assert digest_of(back) == digest_of(table) and list(back) == list(table)
    assert int.from_bytes(memory[:8], "little") == key
    back["image"][:] = 9
    assert (unpack(memory)["image"] == 9).all()  # a view, not a copy
