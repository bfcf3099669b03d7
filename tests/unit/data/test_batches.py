import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensordict import TensorDict

from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.tables import concatenate, digest_of, join_columns, num_rows_of

DTYPES = st.sampled_from([np.float32, np.int64, np.uint8, np.bool_])


@st.composite
def columns(draw: st.DrawFn, num_rows: int | None = None) -> dict[str, np.ndarray]:
    rows = draw(st.integers(0, 4)) if num_rows is None else num_rows
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    shapes = {name: (rows, *draw(st.lists(st.integers(1, 3), max_size=2))) for name in names}
    return {name: draw(hnp.arrays(draw(DTYPES), shape)) for name, shape in shapes.items()}


@given(columns())
def test_converting_to_a_batch_and_back_keeps_the_columns(arrays: dict[str, np.ndarray]) -> None:
    batch = to_batch(arrays)
    back = to_columns(batch)
    assert batch.batch_size == torch.Size([num_rows_of(arrays)])
    assert {name: array.dtype for name, array in back.items()} == {name: a.dtype for name, a in arrays.items()}
    assert digest_of(back) == digest_of(arrays)


def test_a_batch_may_be_written_to_without_changing_the_buffers_rows() -> None:
    shared = np.zeros(2, np.float32)
    shared.flags.writeable = False
    batch = to_batch({"a": shared})
    batch["a"] += 1.0
    assert shared.tolist() == [0.0, 0.0]


def test_columns_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'a': 2, 'b': 3"):
        num_rows_of({"a": np.zeros(2), "b": np.zeros(3)})
    assert num_rows_of({}) == 0


@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_concatenating_the_parts_of_a_batch_gives_the_batch(data: st.DataObject, counts: list[int]) -> None:
    whole = data.draw(columns(num_rows=sum(counts)))
    bounds = np.cumsum([0, *counts])
    parts = [{n: a[low:high] for n, a in whole.items()} for low, high in itertools.pairwise(bounds)]
    assert digest_of(concatenate(parts)) == digest_of(whole)


def test_one_part_is_passed_on_without_a_copy() -> None:
    part = {"a": np.zeros(3)}
    assert concatenate([part])["a"] is part["a"]


def test_parts_with_different_columns_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"\('a',\), \('a', 'b'\)"):
        concatenate([{"a": np.zeros(1)}, {"a": np.zeros(1), "b": np.zeros(1)}])


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_parents_are_joined_by_uid_in_the_order_of_the_first(left: list[int], right: list[int]) -> None:
    first = {"uid": np.array(left), "a": np.array(left) * 10, "both": np.array(left) * 0.5}
    second = {"uid": np.array(right), "b": np.array(right) * 100, "both": np.array(right) * 0.5}
    joined = join_columns([first, second])
    assert sorted(joined) == ["a", "b", "both", "uid"]
    assert joined["uid"].tolist() == left
    assert joined["a"].tolist() == [10 * uid for uid in left]
    assert joined["b"].tolist() == [100 * uid for uid in left]


@pytest.mark.parametrize(
    ("left", "right"),
    [([1, 2], [1, 3]), ([1, 2], [1]), ([1], [1, 2]), ([1, 1], [1, 2]), ([1, 2], [1, 1]), ([1, 1], [1, 1])],
)
def test_parents_with_different_or_duplicate_rows_are_refused(left: list[int], right: list[int]) -> None:
    with pytest.raises(ValueError, match="different rows"):
        join_columns([{"uid": np.array(left)}, {"uid": np.array(right)}])


def test_a_column_that_parents_disagree_on_is_refused_by_name() -> None:
    first, second = ({"uid": np.array([1, 2]), "reward": np.array([0.0, value])} for value in (1.0, 2.0))
    with pytest.raises(ValueError, match="'reward' differs"):
        join_columns([first, second])


def test_nan_agrees_with_itself() -> None:
    parent = {"uid": np.array([1]), "reward": np.array([np.nan])}
    assert np.isnan(join_columns([parent, dict(parent)])["reward"]).all()


def test_a_single_parent_is_passed_on_unchanged() -> None:
    assert join_columns([{"state": np.array([3])}])["state"].tolist() == [3]


@given(columns(), st.data())
def test_the_digest_changes_with_any_change(arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    digest = digest_of(arrays)
    assert digest_of(dict(reversed(arrays.items()))) == digest
    name = data.draw(st.sampled_from(sorted(arrays)))
    array = arrays[name]
    others = {key: value for key, value in arrays.items() if key != name}
    assert digest_of(others | {"other name": array}) != digest
    assert digest_of(others | {name: array[None]}) != digest
    assert digest_of(others | {name: array.astype(np.float64)}) != digest
    assert digest_of(others) != digest
    if array.size:
        raw = bytearray(array.tobytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1
        flipped = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
        assert digest_of(others | {name: flipped}) != digest


def test_the_digest_does_not_depend_on_the_memory_layout() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert digest_of({"a": np.asfortranarray(array)}) == digest_of({"a": array})
    assert digest_of({"a": array[::2]}) == digest_of({"a": array[::2].copy()})


def test_transposed_tensors_that_require_gradients_become_contiguous_arrays() -> None:
    tensor = torch.arange(6.0).view(2, 3).t().requires_grad_()
    columns = to_columns(TensorDict({"a": tensor}, batch_size=[3]))
    assert columns["a"].flags.c_contiguous
    assert columns["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
