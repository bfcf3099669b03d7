"""The tokens of the highest entropy are those of the whole mini-batch, on any number of ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.objective import policy_objective
from embodyflow.algorithms.selection import top_entropy_tokens

# Nine tokens inside the mask with entropies 0.1 to 0.9; those outside would be the highest.
ENTROPY = torch.tensor([[0.3, 0.9, 9.0, 0.1], [0.5, 0.2, 0.8, torch.nan], [0.7, 0.4, 0.6, 9.0]])
MASK = torch.tensor([[True, True, False, True], [True, True, True, False], [True, True, True, False]])


@pytest.mark.parametrize(
    ("fraction", "lowest"),
    [
        (1e-9, 0.9),  # never none
        (0.2, 0.8),  # the 0.8 quantile lies between 0.7 and 0.8
        (0.25, 0.7),  # the 0.75 quantile is 0.7
        (0.5, 0.5),
        (0.3, 0.7),
        (1.0, 0.1),
    ],
)
def test_the_tokens_at_or_above_the_quantile_are_selected(fraction, lowest):
    selected = top_entropy_tokens(ENTROPY, MASK, fraction)
    assert torch.equal(selected, MASK & (lowest - 0.05 < ENTROPY))


def test_tokens_that_tie_with_the_lowest_are_all_selected():
    assert torch.equal(top_entropy_tokens(torch.full((3, 4), 1.5), MASK, 0.2), MASK)
    entropy = torch.tensor([[0.0, 0.0, 2.0, 1.0, 1.0]])
    assert top_entropy_tokens(entropy, torch.ones(1, 5, dtype=torch.bool), 0.4).tolist() == [
        [False, False, True, True, True]
    ]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), fraction=st.floats(0.01, 1.0), power=st.integers(-6, 3))
def test_selection_against_torch_quantile(seed, fraction, power):
    rng = torch.Generator().manual_seed(seed)
    entropy = torch.rand(7, 9, generator=rng, dtype=torch.float64) * 10.0**power
    mask = torch.rand(7, 9, generator=rng) < 0.7
    threshold = torch.quantile(entropy[mask], 1.0 - fraction)
    assert torch.equal(top_entropy_tokens(entropy, mask, fraction), mask & (entropy >= threshold * (1 - 1e-12)))


def test_selection_is_over_all_ranks(run_ranks):
    rng = torch.Generator().manual_seed(4)
    entropy, mask = torch.rand(8, 6, generator=rng), torch.rand(8, 6, generator=rng) < 0.8
    entropy[:4] += 1.0  # the first rank has all the highest
    whole = top_entropy_tokens(entropy, mask, 0.2)
    parts = run_ranks(
        2,
        lambda rank, all_reduce: top_entropy_tokens(
            entropy[4 * rank : 4 * rank + 4], mask[4 * rank : 4 * rank + 4], 0.2, all_reduce
        ),
    )
    assert torch.equal(torch.cat(parts), whole) and parts[0].any() and not parts[1].any()


def test_empty_masks_select_nothing():
    assert not top_entropy_tokens(ENTROPY, torch.zeros_like(MASK), 0.2).any()
    assert top_entropy_tokens(ENTROPY[:0], MASK[:0], 0.2).shape == (0, 4)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_only_selected_tokens_have_a_policy_loss_and_all_count_in_its_mean(aggregation):
    """On-policy the gradient of a token is −weight·A; KL term and entropy bonus keep theirs."""
    config = AlgorithmConfig(aggregation=aggregation, top_entropy_fraction=0.25)
    old = torch.full((3, 4), -1.0, dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.float64).expand(3, 4)
    weights = token_weights(MASK, aggregation, count_tokens(MASK, 4))
    high = top_entropy_tokens(ENTROPY, MASK, 0.25)
    log_probs = old.clone().requires_grad_()
    loss, metrics = policy_objective(LossInputs(log_probs, old, advantages, MASK, high_entropy=high), weights, config)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert gradient.nonzero().tolist() == [[0, 1], [1, 2], [2, 0]]  # 0.9, 0.8, 0.7
    assert gradient[high].tolist() == pytest.approx([-1 / 9, 2 / 9, -3 / 9])
    total, count = metrics["policy/high_entropy_fraction"]
    assert (total.item(), count.item()) == (3, 9)
    with_kl = AlgorithmConfig(aggregation=aggregation, kl={"coef": 1.0, "estimator": "k1"})
    inputs = LossInputs(log_probs, old, advantages, MASK, ref_log_probs=old, high_entropy=high)
    (also,) = torch.autograd.grad(policy_objective(inputs, weights, with_kl)[0], log_probs)
    assert (also - gradient)[MASK].tolist() == pytest.approx([1 / 9] * 9)
