import itertools
import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.masked import over_rows
from embodyflow.algorithms.objective import policy_objective, value_objective

AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm")
TOKEN_LOSSES = ("ppo", "cispo", "cpgd", "clip_cov", "kl_cov", "gpg", "sapo")
VARIANTS = [
    *itertools.product(TOKEN_LOSSES, AGGREGATIONS),
    ("gspo", "seq_mean_token_mean"),
    ("gmpo", "seq_mean_token_mean"),
]
NUM_ROWS, LENGTH, FEATURES, ACTIONS = 13, 6, 3, 5


def algorithm(loss, aggregation):
    return AlgorithmConfig(
        loss=loss,
        aggregation=aggregation,
        entropy_coef=0.01,
        kl={"coef": 0.1, "estimator": "k3"},
        cpgd={"drift_coef": 0.1},
        covariance={"fraction": 0.1, "low": 0.01},
    )


class Data:
    """A mini-batch of a linear policy, with a padding row and rows of unequal length."""

    def __init__(self, dtype=torch.float64):
        rng = torch.Generator().manual_seed(0)

        def normal(*size):
            return torch.randn(*size, generator=rng, dtype=torch.float64).to(dtype)

        self.weight = normal(FEATURES, ACTIONS)
        self.features = normal(NUM_ROWS, LENGTH, FEATURES)
        self.actions = torch.randint(0, ACTIONS, (NUM_ROWS, LENGTH), generator=rng)
        lengths = torch.tensor([6, 1, 3, 0, 5, 6, 2, 4, 6, 1, 2, 6, 3])
        self.mask = torch.arange(LENGTH) < lengths[:, None]
        self.advantages = normal(NUM_ROWS, 1).expand(NUM_ROWS, LENGTH)
        old = self.log_probs(self.weight)[0]
        self.old = (old + 0.3 * normal(NUM_ROWS, LENGTH)).detach()
        self.reference = (old + 0.3 * normal(NUM_ROWS, LENGTH)).detach()
        self.seeds = torch.arange(NUM_ROWS)

    def log_probs(self, weight, rows=slice(None)):
        distribution = (self.features[rows] @ weight).log_softmax(-1)
        chosen = distribution.gather(-1, self.actions[rows, :, None])[..., 0]
        return chosen, -(distribution.exp() * distribution).sum(-1)

    def gradient(self, config, weights, selected, rows, columns=slice(None)):
        weight = self.weight.clone().requires_grad_()
        log_probs, entropy = self.log_probs(weight, rows)
        inputs = LossInputs(
            log_probs, self.old[rows], self.advantages[rows], self.mask[rows], self.reference[rows], entropy
        )
        inputs = replace(inputs, selected=None if selected is None else selected[rows])
        present = {f.name: getattr(inputs, f.name) for f in fields(inputs) if getattr(inputs, f.name) is not None}
        inputs = LossInputs(**{name: tensor[:, columns] for name, tensor in present.items()})
        loss, metrics = policy_objective(inputs, weights[rows][:, columns], config)
        (gradient,) = torch.autograd.grad(loss, weight)
        return loss.detach(), gradient, metrics


def total(results):
    return sum(loss for loss, _, _ in results), sum(gradient for _, gradient, _ in results)


def prepare(data, config, rows=slice(None), **all_reduce):
    mask = data.mask[rows]
    weights = token_weights(mask, config.aggregation, count_tokens(mask, mask.shape[1], over_rows(**all_reduce)))
    selected = select_tokens(data.old[rows], data.advantages[rows], mask, data.seeds[rows], config, **all_reduce)
    return weights, selected


def micro_batches(num_pieces):
    return [rows for rows in torch.arange(NUM_ROWS).tensor_split(num_pieces) if len(rows)]


def by_tokens(mask, budget):
    """Dynamic batching: longest rows first, as many as fit; so order and size both differ."""
    pieces, used = [[]], 0
    for row in mask.sum(1).argsort(descending=True).tolist():
        length = int(mask[row].sum())
        if used + length > budget:
            pieces.append([])
            used = 0
        pieces[-1].append(row)
        used += length
    return [torch.tensor(piece) for piece in pieces]


@pytest.mark.parametrize(("loss", "aggregation"), VARIANTS)
def test_gradient_does_not_depend_on_how_the_batch_is_cut(loss, aggregation):
    data, config = Data(), algorithm(loss, aggregation)
    weights, selected = prepare(data, config)
    whole_loss, whole_gradient, whole_metrics = data.gradient(config, weights, selected, slice(None))
    assert whole_gradient.abs().max() > 1e-3
    for pieces in (*map(micro_batches, (2, 7, NUM_ROWS)), by_tokens(data.mask, 9)):
        results = [data.gradient(config, weights, selected, rows) for rows in pieces]
        cut_loss, cut_gradient = total(results)
        torch.testing.assert_close(cut_gradient, whole_gradient, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cut_loss, whole_loss, rtol=1e-12, atol=1e-12)
        for name, (value, count) in whole_metrics.items():
            assert sum(metrics[name][1] for _, _, metrics in results) == count
            assert sum(metrics[name][0] for _, _, metrics in results).item() == pytest.approx(value.item())


@pytest.mark.parametrize(("loss", "aggregation"), VARIANTS)
def test_gradient_does_not_depend_on_ranks(loss, aggregation, run_ranks):
    data, config = Data(), algorithm(loss, aggregation)
    _, whole, _ = data.gradient(config, *prepare(data, config), slice(None))

    def rank_gradient(rank, all_reduce):
        rows = slice(0, 4) if rank == 0 else slice(4, NUM_ROWS)
        weights, selected = prepare(data, config, rows, all_reduce=all_reduce)
        offset = rows.start
        full_weights = torch.zeros(NUM_ROWS, LENGTH, dtype=torch.float64)
        full_weights[rows] = weights
        full_selected = None
        if selected is not None:
            full_selected = torch.zeros(NUM_ROWS, LENGTH, dtype=torch.bool)
            full_selected[rows] = selected
        pieces = (torch.arange(rows.stop - offset) + offset).tensor_split(2)
        return total([data.gradient(config, full_weights, full_selected, piece) for piece in pieces])[1]

    torch.testing.assert_close(sum(run_ranks(2, rank_gradient)), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", TOKEN_LOSSES)
def test_token_losses_can_be_cut_within_rows(loss):
    data, config = Data(), algorithm(loss, "seq_mean_token_mean")
    weights, selected = prepare(data, config)
    _, whole, _ = data.gradient(config, weights, selected, slice(None))
    slices = [slice(0, 2), slice(2, 3), slice(3, LENGTH)]
    _, cut = total([data.gradient(config, weights, selected, slice(None), columns) for columns in slices])
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_float32_gradient_is_the_same_to_1e_6(aggregation):
    data, config = Data(torch.float32), algorithm("ppo", aggregation)
    weights, selected = prepare(data, config)
    _, whole, _ = data.gradient(config, weights, selected, slice(None))
    assert whole.dtype == torch.float32
    _, cut = total([data.gradient(config, weights, selected, rows) for rows in micro_batches(7)])
    assert (cut - whole).norm() <= 1e-6 * whole.norm()


def test_a_mean_of_micro_batch_means_would_fail_this():
    """The planted fault: weights made inside each micro-batch change the gradient."""
    data, config = Data(), algorithm("ppo", "token_mean")
    weights, selected = prepare(data, config)
    _, whole, _ = data.gradient(config, weights, selected, slice(None))
    faulty = 0.0
    for rows in micro_batches(2):
        local = torch.zeros_like(weights)
        local[rows] = (
            token_weights(data.mask[rows], "token_mean", count_tokens(data.mask[rows], data.mask.shape[1])) / 2
        )
        faulty = faulty + data.gradient(config, local, selected, rows)[1]
    assert (faulty - whole).norm() > 1e-2 * whole.norm()


def test_terms_by_hand():
    log_probs = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        log_probs,
        log_probs.detach(),
        torch.tensor([[3.0, 1.0]], dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.bool),
        ref_log_probs=torch.tensor([[-1.5, -1.0]], dtype=torch.float64),
        entropy=torch.tensor([[0.5, 0.7]], dtype=torch.float64),
    )
    config = AlgorithmConfig(entropy_coef=0.1, kl={"coef": 0.2, "estimator": "k2"})
    weights = token_weights(inputs.mask, config.aggregation, count_tokens(inputs.mask, inputs.mask.shape[1]))
    loss, metrics = policy_objective(inputs, weights, config)
    # policy −(3 + 1)/2; KL ½(0.25 + 1)/2 = 0.3125; entropy 0.6
    assert loss.item() == pytest.approx(-2 + 0.2 * 0.3125 - 0.1 * 0.6)
    adapted, _ = policy_objective(inputs, weights, config, kl_coef=0.4)
    assert adapted.item() == pytest.approx(-2 + 0.4 * 0.3125 - 0.1 * 0.6)
    means = {name: (value / count).item() for name, (value, count) in metrics.items()}
    assert means == {
        "policy/pg_loss": pytest.approx(-2.0),
        "policy/old_kl": 0.0,
        "policy/entropy": pytest.approx(0.6),
        "policy/reference_kl": pytest.approx(0.3125),
        "policy/clip_fraction": 0.0,
        "policy/dual_clip_fraction": 0.0,
    }


def test_kl_in_the_reward_is_not_in_the_loss():
    log_probs = torch.tensor([[-1.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    inputs = LossInputs(log_probs, log_probs, torch.ones(1, 1), mask, ref_log_probs=torch.tensor([[-5.0]]))
    config = AlgorithmConfig(kl={"coef": 9.0, "estimator": "k1", "placement": "reward"})
    loss, metrics = policy_objective(
        inputs, token_weights(mask, "token_mean", count_tokens(mask, mask.shape[1])), config
    )
    assert loss.item() == -1.0
    assert "policy/reference_kl" not in metrics


@pytest.mark.parametrize(("loss", "aggregation"), VARIANTS)
def test_nan_outside_the_mask_reaches_neither_loss_nor_gradient(loss, aggregation):
    data, config = Data(), algorithm(loss, aggregation)
    weights, selected = prepare(data, config)
    log_probs, entropy = data.log_probs(data.weight)
    clean = LossInputs(log_probs, data.old, data.advantages, data.mask, data.reference, entropy, selected)
    expected, _ = policy_objective(clean, weights, config)
    poison = {
        f.name: getattr(clean, f.name).masked_fill(~data.mask, value)
        for f, value in zip(fields(clean), [math.nan, math.inf, -math.inf, None, math.nan, math.inf], strict=False)
        if value is not None
    }
    dirty = replace(clean, **poison)
    leaf = dirty.log_probs.detach().requires_grad_()
    actual, metrics = policy_objective(replace(dirty, log_probs=leaf), weights, config)
    (gradient,) = torch.autograd.grad(actual, leaf)
    assert actual.item() == expected.item()
    assert torch.isfinite(gradient).all()
    assert (gradient[~data.mask] == 0).all()
    assert all(math.isfinite(value) for value, _ in metrics.values())


@pytest.mark.parametrize(("loss", "aggregation"), VARIANTS)
def test_a_mask_of_zeros_gives_zero_loss_and_gradient(loss, aggregation):
    data, config = Data(), algorithm(loss, aggregation)
    data.mask = torch.zeros_like(data.mask)
    value, gradient, _ = data.gradient(config, *prepare(data, config), slice(None))
    assert value.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("loss", ["ppo", "gspo", "gmpo", "cispo", "cpgd", "gpg", "sapo"])
def test_no_advantage_no_policy_gradient(loss):
    """All-equal rewards: nothing to learn, whatever the ratio."""
    data = Data()
    data.advantages = torch.zeros_like(data.advantages)
    aggregation = "seq_mean_token_mean" if loss in ("gspo", "gmpo") else "token_mean"
    config = AlgorithmConfig(loss=loss, aggregation=aggregation)
    value, gradient, _ = data.gradient(config, *prepare(data, config), slice(None))
    assert value.item() == 0
    assert (gradient == 0).all()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize(("loss", "aggregation"), [("ppo", "token_mean"), ("gmpo", "seq_mean_token_mean")])
def test_order_of_rows_does_not_matter(loss, aggregation, seed):
    data, config = Data(), algorithm(loss, aggregation)
    weights, selected = prepare(data, config)
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(seed))
    _, whole, _ = data.gradient(config, weights, selected, slice(None))
    _, shuffled, _ = data.gradient(config, weights, selected, order)
    torch.testing.assert_close(shuffled, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"kl": {"coef": 0.1}}, {}, "ref_log_probs: missing; kl.coef=0.1"),
        ({"entropy_coef": 0.1}, {}, "entropy: missing; entropy_coef=0.1"),
        ({}, {"advantages": torch.zeros(2, 1)}, r"advantages: shape \[2, 1\]; allowed: \[2, 3\]"),
        ({}, {"mask": torch.ones(2, 3)}, "mask: dtype torch.float32; allowed: torch.bool"),
    ],
)
def test_bad_inputs_are_named(settings, change, message):
    zeros = torch.zeros(2, 3)
    tensors = {"log_probs": zeros, "old_log_probs": zeros, "advantages": zeros, "mask": zeros == 0} | change
    with pytest.raises(ValueError, match=message):
        policy_objective(LossInputs(**tensors), zeros, AlgorithmConfig(**settings))


def test_weights_of_another_shape_are_refused_rather_than_broadcast():
    zeros = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"weights: shape \[3\]"):
        policy_objective(LossInputs(zeros, zeros, zeros, zeros == 0), zeros[0], AlgorithmConfig())


def value_loss(values, old, returns, mask=None, **settings):
    values, old, returns = (torch.tensor([x], dtype=torch.float64) for x in (values, old, returns))
    values.requires_grad_()
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else torch.tensor([mask])
    weights = token_weights(mask, "token_mean", count_tokens(mask, mask.shape[1]))
    loss, metrics = value_objective(values, old, returns, mask, weights, AlgorithmConfig(**settings))
    return loss.item(), torch.autograd.grad(loss, values)[0].tolist()[0], metrics


def test_value_loss_by_hand():
    # 1: moved 1 towards the return 3, counted as if moved 0.5: (0.5 − 3)² = 6.25, no gradient.
    # 2: moved away: (1 − (−1))² = 4 exceeds the clipped 2.25, full gradient.
    loss, gradient, metrics = value_loss([1.0, 1.0], [0.0, 0.0], [3.0, -1.0])
    assert loss == pytest.approx((6.25 + 4) / 4)
    assert gradient == pytest.approx([0.0, 1.0])
    assert (metrics["critic/clip_fraction"][0] / 2).item() == 0.5


def test_value_loss_without_clip_is_half_the_squared_error():
    loss, gradient, metrics = value_loss([1.0, 1.0], [0.0, 0.0], [3.0, -1.0], value_clip=None)
    assert loss == pytest.approx(0.5 * (4 + 4) / 2)
    assert gradient == pytest.approx([-1.0, 1.0])
    assert "critic/clip_fraction" not in metrics


def test_value_loss_does_not_read_outside_the_mask():
    loss, gradient, _ = value_loss([1.0, math.nan], [0.0, math.inf], [3.0, math.nan], [True, False])
    assert loss == pytest.approx(6.25 / 2)
    assert gradient == [0.0, 0.0]


def mean_loss(inputs, config):
    return (inputs.log_probs * inputs.advantages).mean(), {}


def bare_loss(inputs, config):
    return -inputs.log_probs


def telling_loss(inputs, config):
    return -inputs.log_probs, {"mine/tokens": 3.0}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mean_loss", r"returns a loss \[\]; allowed: \[2, 3\], one per token"),
        ("bare_loss", r"returns Tensor; allowed: \(loss, metrics\)"),
        ("telling_loss", r"the metric 'mine/tokens' must be \(sum, count\), two scalar tensors as"),
    ],
)
def test_a_users_loss_must_return_a_number_per_token(function, message):
    ones, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    config = AlgorithmConfig(loss=f"{__name__}:{function}")
    with pytest.raises(ValueError, match=f"^algorithm.loss={__name__}:{function}: {message}"):
        policy_objective(LossInputs(ones, ones, ones, mask), torch.ones(2, 3, dtype=torch.float64), config)
