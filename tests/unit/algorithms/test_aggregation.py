import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.aggregation import GlobalCounts, count_tokens, token_weights

MASK = torch.tensor([[True, True, True, False], [True, False, False, False], [False] * 4])
LOSS = torch.tensor([[1.0, 2.0, 6.0, 9.0], [5.0, 9.0, 9.0, 9.0], [9.0] * 4], dtype=torch.float64)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (1 + 2 + 6 + 5) / 4),
        ("seq_mean_token_sum", (9 + 5) / 2),
        ("seq_mean_token_mean", (3 + 5) / 2),
        ("seq_mean_token_sum_norm", (9 / 4 + 5 / 4) / 2),
    ],
)
def test_by_hand(aggregation, expected):
    """The third row only pads: it is no row of the mean."""
    weights = token_weights(MASK, aggregation, count_tokens(MASK, 4))
    assert (weights * LOSS).sum().item() == pytest.approx(expected)
    assert (weights[~MASK] == 0).all()


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
)
def test_ranks_whose_longest_rows_differ_weigh_as_one(aggregation, run_ranks):
    """Each rank pads its rows to the longest of its own, three tokens and one."""
    whole = token_weights(MASK, aggregation, count_tokens(MASK, 7))
    parts = [MASK[:1, :3], MASK[1:, :1]]
    counts = run_ranks(2, lambda rank, all_reduce: count_tokens(parts[rank], 7, all_reduce))
    weights = [token_weights(part, aggregation, each) for part, each in zip(parts, counts, strict=True)]
    assert torch.equal(weights[0], whole[:1, :3]) and torch.equal(weights[1], whole[1:, :1])
    if aggregation == "seq_mean_token_sum_norm":
        assert whole[MASK].tolist() == [1 / (2 * 7)] * 4


def test_counts():
    assert count_tokens(MASK, 4) == GlobalCounts(num_tokens=4, num_rows=2, row_capacity=4)


def test_counts_over_ranks(run_ranks):
    parts = run_ranks(2, lambda rank, all_reduce: count_tokens(MASK[rank : rank + 2], 4, all_reduce))
    assert parts == [GlobalCounts(num_tokens=5, num_rows=3, row_capacity=4)] * 2


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), density=st.floats(0, 1))
def test_means_have_weights_that_sum_to_one(aggregation, seed, density):
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(seed)) < density
    weights = token_weights(mask, aggregation, count_tokens(mask, mask.shape[1]))
    assert weights.sum().item() == pytest.approx(1.0 if mask.any() else 0.0)


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
)
def test_an_empty_mini_batch_weighs_nothing(aggregation):
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert (token_weights(mask, aggregation, count_tokens(mask, mask.shape[1])) == 0).all()
