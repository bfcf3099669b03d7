"""Every row is in exactly one mini-batch and one micro-batch, and no micro-batch exceeds its limit."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.training.steps.micro_batches import cut_by_rows, cut_by_tokens, draw_minibatches


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**32))
def test_minibatches_differ_by_at_most_one_row(total_rows: int, num_minibatches: int, seed: int) -> None:
    minibatch_of = draw_minibatches(total_rows, num_minibatches, seed)
    sizes = np.bincount(minibatch_of, minlength=num_minibatches)
    assert len(minibatch_of) == sizes.sum() == total_rows and len(sizes) == num_minibatches
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(minibatch_of, draw_minibatches(total_rows, num_minibatches, seed))


def test_different_seeds_draw_different_minibatches() -> None:
    assert len({tuple(draw_minibatches(20, 2, seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("num_rows", "size", "expected"), [(7, 3, [(0, 3), (3, 6), (6, 7)]), (6, 3, [(0, 3), (3, 6)]), (2, 5, [(0, 2)])]
)
def test_rows_are_cut_in_order(num_rows: int, size: int, expected: list[tuple[int, int]]) -> None:
    assert [(cut.start, cut.stop) for cut in cut_by_rows(num_rows, size)] == expected


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        ([4, 6, 1, 10, 10], [(0, 2), (2, 3), (3, 4), (4, 5)]),
        ([10, 0, 0, 3], [(0, 3), (3, 4)]),
        ([1, 1, 1], [(0, 3)]),
        ([0], [(0, 1)]),
    ],
)
def test_a_micro_batch_takes_rows_while_they_fit(num_tokens: list[int], expected: list[tuple[int, int]]) -> None:
    assert [(cut.start, cut.stop) for cut in cut_by_tokens(num_tokens, limit=10)] == expected


def test_a_rank_without_rows_has_no_micro_batch() -> None:
    assert cut_by_rows(0, 3) == cut_by_tokens([], 10) == []


@given(st.lists(st.integers(0, 10), max_size=30))
def test_no_row_is_lost_and_no_limit_exceeded(num_tokens: list[int]) -> None:
    cuts = cut_by_tokens(num_tokens, limit=10)
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(len(num_tokens)))
    assert all(sum(num_tokens[cut]) <= 10 and cut.start < cut.stop for cut in cuts)
    assert all(sum(num_tokens[left]) + num_tokens[right.start] > 10 for left, right in itertools.pairwise(cuts))
