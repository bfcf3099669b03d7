"""A pass with a token of each conversation gives each token the row that any other pass gives it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.generation.conversations.places import BLOCK, NO_SLOT
from embodyflow.generation.conversations.row_passes import Chunk, _Layout, _layout

NUM_SLOTS = 9
WIDTHS = (2, 4, NUM_SLOTS + 2)


def read_cells(layout: _Layout) -> dict[int, tuple[int, int]]:
    """Return the slot and the number of blocks that each row reads."""
    cells = {}
    for part in layout.parts:
        for row in range(part.first, part.end):
            slot = {"in order": row - part.first, "one slot": part.slot}.get(part.reads, int(layout.slots[row]))
            cells[row] = slot, part.num_blocks
    return cells


@given(
    st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=NUM_SLOTS, unique=True),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 3)), min_size=NUM_SLOTS, max_size=NUM_SLOTS),
    st.booleans(),
)
def test_every_token_has_a_row_that_reads_its_slot(
    slots: list[int], spans: list[tuple[int, int]], is_single: bool
) -> None:
    widths = (*WIDTHS[:2], 6, *WIDTHS[2:], 3 * NUM_SLOTS)
    chunks = [
        Chunk(slot, start, [100 * slot + number for number in range(1 if is_single else length)])
        for slot, (start, length) in zip(slots, spans, strict=False)
    ]
    layout = _layout(chunks, widths, NUM_SLOTS)
    places = [(each.slot, each.start + at, token) for each in chunks for at, token in enumerate(each.tokens)]
    rows = layout.rows
    assert len({*rows.tolist()}) == len(rows) == len(places)
    assert [*zip(layout.slots[rows], layout.positions[rows], layout.tokens[rows], strict=True)] == places
    filling = np.setdiff1d(np.arange(len(layout.tokens)), rows)
    assert (layout.slots[filling] == NO_SLOT).all()
    assert not layout.positions[filling].any()
    assert [part.first for part in layout.parts[1:]] == [part.end for part in layout.parts[:-1]]
    assert (layout.parts[0].first, layout.parts[-1].end) == (0, len(layout.tokens))
    cells = read_cells(layout)
    for row, (slot, position, _) in zip(rows.tolist(), places, strict=True):
        assert cells[row][0] == slot
        assert cells[row][1] * BLOCK > position


def test_the_rows_of_most_slots_are_in_the_order_of_the_slots() -> None:
    chunks = [Chunk(slot, 3, [slot]) for slot in (8, 2, 5, 0, 7)]
    layout = _layout(chunks, WIDTHS, NUM_SLOTS)
    assert [part.reads for part in layout.parts] == ["in order", "copies"]
    assert layout.rows.tolist() == [8, 2, 5, 0, 7]
    assert layout.slots.tolist() == [0, -1, 2, -1, -1, 5, -1, 7, 8, -1, -1]


def test_the_rows_of_most_slots_read_by_a_table_where_the_slots_are_more_than_the_rows() -> None:
    layout = _layout([Chunk(slot, 3, [slot]) for slot in (8, 2, 5, 0, 7)], (6,), NUM_SLOTS)
    assert [(part.reads, part.first, part.end) for part in layout.parts] == [("by table", 0, 5), ("copies", 5, 6)]
    assert layout.slots.tolist() == [8, 2, 5, 0, 7, -1]


def test_the_rows_of_few_slots_read_copies() -> None:
    layout = _layout([Chunk(slot, 3, [slot]) for slot in (8, 2, 5)], WIDTHS, NUM_SLOTS)
    assert [part.reads for part in layout.parts] == ["copies"]
    assert layout.slots.tolist() == [8, 2, 5, -1]
