import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.covariance import select_tokens

# log-probs deviate from their mean −3 by −2, −1, 0, 3; advantages from their mean 0 by −2, 1, −1, 2.
# Covariances: 4, −1, 0, 6; the token outside the mask would spoil both means.
LOG_PROBS = torch.tensor([[-5.0, -4.0, 99.0], [-3.0, 0.0, 99.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[-2.0, 1.0, 99.0], [-1.0, 2.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, True, False]])
SEEDS = torch.tensor([11, 12])


def config(loss, **covariance):
    return AlgorithmConfig(loss=loss, covariance=covariance)


def random_batch(seed, num_rows=12, length=10):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(num_rows, length, generator=rng, dtype=torch.float64),
        torch.randn(num_rows, 1, generator=rng, dtype=torch.float64).expand(num_rows, length),
        torch.rand(num_rows, length, generator=rng) < 0.8,
        torch.arange(num_rows) + 1000,
    )


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.01, [[False, False, False], [False, True, False]]),  # at least one
        (0.5, [[True, False, False], [False, True, False]]),
        (0.75, [[True, False, False], [True, True, False]]),  # a covariance of 0
        (1.0, [[True, True, False], [True, True, False]]),  # a negative one too
    ],
)
def test_kl_cov_takes_the_highest(fraction, expected):
    selected = select_tokens(LOG_PROBS, ADVANTAGES, MASK, SEEDS, config("kl_cov", fraction=fraction))
    assert selected.tolist() == expected


def test_clip_cov_takes_only_the_band():
    selected = select_tokens(LOG_PROBS, ADVANTAGES, MASK, SEEDS, config("clip_cov", fraction=1.0))
    assert selected.tolist() == [[True, False, False], [False, False, False]]  # 1 < 4 < 5 < 6


def test_losses_that_select_nothing():
    assert select_tokens(LOG_PROBS, ADVANTAGES, MASK, SEEDS, config("ppo")) is None


def test_kl_cov_takes_the_asked_number_where_covariances_are_equal():
    """Seeds decide between tokens of equal covariance, so different seeds choose different tokens."""
    chosen = set()
    for seed in range(30):
        seeds = torch.tensor([2 * seed, 2 * seed + 1])
        selected = select_tokens(LOG_PROBS, torch.ones_like(ADVANTAGES), MASK, seeds, config("kl_cov", fraction=0.5))
        assert selected.sum() == 2 and not selected[~MASK].any()
        chosen.add(tuple(selected[MASK].tolist()))
    assert len(chosen) == 6


def test_clip_cov_selects_nothing_without_covariance():
    settings = config("clip_cov", fraction=1.0, low=0.0)
    assert not select_tokens(LOG_PROBS, torch.ones_like(ADVANTAGES), MASK, SEEDS, settings).any()


@pytest.mark.parametrize("loss", ["kl_cov", "clip_cov"])
def test_empty_masks_select_nothing(loss):
    settings = config(loss, fraction=1.0, low=0.0)
    assert not select_tokens(LOG_PROBS, ADVANTAGES, torch.zeros_like(MASK), SEEDS, settings).any()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), fraction=st.floats(0.01, 1.0))
def test_kl_cov_against_topk(seed, fraction):
    log_probs, advantages, mask, seeds = random_batch(seed)
    selected = select_tokens(log_probs, advantages, mask, seeds, config("kl_cov", fraction=fraction))
    covariance = (log_probs - log_probs[mask].mean()) * (advantages - advantages[mask].mean())
    covariance[~mask] = -torch.inf
    top = covariance.flatten().topk(max(1, int(mask.sum().item() * fraction))).indices
    expected = torch.zeros(mask.numel(), dtype=torch.bool).index_fill(0, top, True).reshape(mask.shape)
    assert torch.equal(selected, expected)


def test_clip_cov_draws_the_asked_number_uniformly():
    log_probs, advantages, mask, _ = random_batch(0)
    settings = config("clip_cov", fraction=0.05, low=0.0, high=1e9)
    covariance = (log_probs - log_probs[mask].mean()) * (advantages - advantages[mask].mean())
    band = mask & (covariance > 0)
    times = torch.zeros(mask.shape)
    for draw in range(400):
        seeds = torch.arange(12) + 12 * draw
        selected = select_tokens(log_probs, advantages, mask, seeds, settings)
        assert selected.sum() == int(mask.sum() * 0.05)
        times += selected
    assert (times[~band] == 0).all()
    expected = 400 * int(mask.sum() * 0.05) / band.sum()
    assert (times[band] - expected).abs().max() < 5 * expected.sqrt()


@pytest.mark.parametrize("loss", ["kl_cov", "clip_cov"])
def test_selection_does_not_depend_on_ranks_or_order(loss, run_ranks):
    batch, settings = random_batch(3), config(loss, fraction=0.1, low=0.1)
    whole = select_tokens(*batch, settings)
    parts = run_ranks(
        2,
        lambda rank, all_reduce: select_tokens(
            *(tensor[:5] if rank == 0 else tensor[5:] for tensor in batch), settings, all_reduce
        ),
    )
    assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(select_tokens(*(tensor[order] for tensor in batch), settings), whole[order])


def test_a_rank_without_rows_takes_part(run_ranks):
    batch, settings = random_batch(4), config("clip_cov", fraction=0.1, low=0.1)
    parts = run_ranks(
        2,
        lambda rank, all_reduce: select_tokens(
            *(tensor if rank == 0 else tensor[:0] for tensor in batch), settings, all_reduce
        ),
    )
    assert torch.equal(parts[0], select_tokens(*batch, settings))
    assert parts[1].shape == (0, 10)
