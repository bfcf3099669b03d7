import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.aggregation import GlobalCounts, count_tokens, token_weights
from embodyflow.algorithms.masked import over_minibatches, over_rows, whiten

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
    counts = run_ranks(2, lambda rank, all_reduce: count_tokens(parts[rank], 7, over_rows(all_reduce)))
    weights = [token_weights(part, aggregation, each) for part, each in zip(parts, counts, strict=True)]
    assert torch.equal(weights[0], whole[:1, :3]) and torch.equal(weights[1], whole[1:, :1])
    if aggregation == "seq_mean_token_sum_norm":
        assert whole[MASK].tolist() == [1 / (2 * 7)] * 4


def test_counts():
    assert count_tokens(MASK, 4) == GlobalCounts(num_tokens=4, num_rows=2, row_capacity=4)


def test_counts_over_ranks(run_ranks):
    parts = run_ranks(2, lambda rank, all_reduce: count_tokens(MASK[rank : rank + 2], 4, over_rows(all_reduce)))
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


CUTS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm"]
)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), sizes=CUTS)
def test_mini_batches_side_by_side_weigh_and_whiten_as_alone(aggregation, seed, sizes):
    """A rank may have no row of a mini-batch, and rows may have no token."""
    generator = torch.Generator().manual_seed(seed)
    cuts = [slice(sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(len(sizes))]
    mask = torch.rand(sum(sizes), 3, generator=generator) < 0.7
    numbers = torch.randn(mask.shape, generator=generator).double().masked_fill(~mask, 0.0)
    together = over_minibatches(cuts)
    weights = token_weights(mask, aggregation, count_tokens(mask, 3, together))
    whitened = whiten(numbers, mask, together)
    for cut in cuts:
        alone = token_weights(mask[cut], aggregation, count_tokens(mask[cut], 3))
        torch.testing.assert_close(weights[cut], alone, rtol=1e-12, atol=0)
        torch.testing.assert_close(whitened[cut], whiten(numbers[cut], mask[cut], over_rows()), rtol=1e-9, atol=1e-12)


def test_mini_batches_over_ranks_are_summed_at_once(run_ranks):
    """The first rank has two rows of the first mini-batch and none of the second, where the other has one of each."""
    parts = [(MASK[:2], [slice(0, 2), slice(2, 2)]), (MASK[:2], [slice(0, 1), slice(1, 2)])]
    calls = []

    def count(rank, all_reduce):
        def counted(tensor):
            calls.append(rank)
            return all_reduce(tensor)

        mask, cuts = parts[rank]
        return count_tokens(mask, 4, over_minibatches(cuts, counted))

    first, second = run_ranks(2, count)
    assert first.num_tokens.tolist() == [[7], [7]] and first.num_rows.tolist() == [[3], [3]]
    assert second.num_tokens.tolist() == [[7], [1]] and second.num_rows.tolist() == [[3], [1]]
    assert sorted(calls) == [0, 1]
