"""Columns in parts: digests and bytes are those of the whole."""

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embodyflow.data.parts import Part, PartsDigest, in_parts, outline, write_parts
from embodyflow.data.table_packing import Packing, unpack
from embodyflow.data.tables import digest_of

Columns = dict[str, np.ndarray]
VALUES = {"first": np.arange(6.0).reshape(2, 3), "second": np.ones(1, np.float32), "third": np.zeros((0, 4), np.int8)}

dtypes = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]).map(np.dtype)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7)
some_columns = st.dictionaries(
    st.text("abc.", min_size=1, max_size=3), dtypes.flatmap(lambda dtype: arrays.arrays(dtype, shapes)), max_size=6
)


def cut(columns: Columns, size: int) -> Iterator[Part]:
    """Yield the columns in parts of at most ``size`` values, in order of their names."""
    for name, array in sorted(columns.items()):
        flat = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, max(flat.size, 1), size):
            yield Part(name, start, flat[start : start + size])


def outlines_of(columns: Columns) -> Columns:
    return {name: outline(array.shape, array.dtype) for name, array in columns.items()}


@given(some_columns, st.integers(1, 40))
def test_digest_and_bytes_in_parts_are_those_of_the_whole(columns: Columns, size: int) -> None:
    digest = PartsDigest(outlines_of(columns))
    rows = {name: array[None] for name, array in columns.items()}
    packing = Packing({name: array[None] for name, array in outlines_of(columns).items()})
    with tempfile.TemporaryFile() as file:
        file.write(b"\xff" * packing.num_bytes)  # of an earlier shard
        file.flush()
        write_parts(file.fileno(), packing, digest.watch(cut(columns, size)))
        file.seek(0)
        content = bytearray(file.read())
    assert digest.hexdigest() == digest_of(columns)
    whole = bytearray(b"\xff" * packing.num_bytes)
    Packing(rows).write(whole, 7)
    assert content[8:] == whole[8:]
    found = unpack(content)
    assert list(found) == list(rows)
    assert all(found[name].tobytes() == array.tobytes() for name, array in rows.items())


def test_an_outline_has_no_values() -> None:
    large = outline((10**6, 10**6), np.dtype(np.float32))
    assert (large.nbytes, large.base.nbytes) == (4 * 10**12, 4)


@pytest.mark.parametrize("kept", [slice(0, 2), slice(1, None), slice(None, None, -1)])
def test_parts_that_are_missing_or_out_of_order_have_no_digest(kept: slice) -> None:
    with pytest.raises(ValueError, match=r"^(got '.*' from value|the parts end at value)"):
        list(PartsDigest(outlines_of(VALUES)).watch(list(cut(VALUES, 2))[kept]))


def test_missing_values_are_noticed() -> None:
    message = "^the parts have 4 bytes; the table has 52$"
    with tempfile.TemporaryFile() as file, pytest.raises(ValueError, match=message):
        write_parts(file.fileno(), Packing(VALUES), in_parts({"second": VALUES["second"]}))
