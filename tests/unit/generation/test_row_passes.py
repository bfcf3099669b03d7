"""The layout of a pass with a token of each conversation is that of any other pass."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.generation.conversations.row_passes import Chunk, _layout_of_chunks, _layout_of_singles

NUM_SLOTS = 9
WIDTHS = (2, 4, NUM_SLOTS)


@given(
    st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=NUM_SLOTS, unique=True),
    st.lists(st.integers(0, 200), min_size=NUM_SLOTS, max_size=NUM_SLOTS),
)
def test_single_tokens_have_the_layout_of_chunks(slots: list[int], starts: list[int]) -> None:
    chunks = [Chunk(slot, start, [slot + 100]) for slot, start in zip(slots, starts, strict=False)]
    fast, general = (
        dataclasses.asdict(build(chunks, WIDTHS, NUM_SLOTS)) for build in (_layout_of_singles, _layout_of_chunks)
    )
    for name, value in general.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(fast[name], value, err_msg=name)
            assert fast[name].dtype == value.dtype
        else:
            assert fast[name] == value, name
