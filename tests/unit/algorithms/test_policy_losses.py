import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.losses import LossInputs, find_loss

ROW_LOSSES = ("gspo", "gmpo")
LOSS_NAMES = ("ppo", "gspo", "gmpo", "cispo", "cpgd", "clip_cov", "kl_cov", "gpg", "sapo")


def loss_config(loss, **settings):
    aggregation = "seq_mean_token_mean" if loss in ROW_LOSSES else "token_mean"
    return AlgorithmConfig(loss=loss, aggregation=aggregation, **settings)


def evaluate(loss, ratios, advantages, mask=None, selected=None, old=-1.0, **settings):
    """Per-token losses and d(sum of losses)/d(log_probs) for rows of ratios."""
    ratios = torch.tensor(ratios, dtype=torch.float64)
    old_log_probs = torch.full_like(ratios, old)
    log_probs = (old_log_probs + ratios.log()).requires_grad_()
    mask = torch.ones_like(ratios, dtype=torch.bool) if mask is None else torch.tensor(mask)
    inputs = LossInputs(
        log_probs,
        old_log_probs,
        torch.tensor(advantages, dtype=torch.float64).expand_as(ratios),
        mask,
        selected=None if selected is None else torch.tensor(selected),
    ).zero_outside_mask()
    losses, metrics = find_loss(loss)(inputs, loss_config(loss, **settings))
    (gradient,) = torch.autograd.grad(losses.masked_fill(~mask, 0).sum(), log_probs)
    return losses.detach(), gradient, {name: (s / n).item() for name, (s, n) in metrics.items()}


def test_ppo_clips_on_the_pessimistic_side_only():
    losses, gradient, metrics = evaluate("ppo", [[0.5, 1.0, 1.5], [0.5, 1.0, 1.5]], [[2.0], [-2.0]])
    assert losses.tolist() == [pytest.approx([-1.0, -2.0, -2.4]), pytest.approx([1.6, 2.0, 3.0])]
    assert gradient.tolist() == [pytest.approx([-1.0, -2.0, 0.0]), pytest.approx([0.0, 2.0, 3.0])]
    assert metrics == {"policy/clip_fraction": pytest.approx(2 / 6), "policy/dual_clip_fraction": 0.0}


def test_ppo_dual_clip_bounds_the_loss_of_a_bad_action_only():
    losses, gradient, metrics = evaluate("ppo", [[5.0, 5.0, 2.0]], [[-1.0, 1.0, -1.0]])
    assert losses.tolist() == [pytest.approx([3.0, -1.2, 2.0])]
    assert gradient.tolist() == [pytest.approx([0.0, 0.0, 2.0])]
    assert metrics["policy/dual_clip_fraction"] == pytest.approx(1 / 3)


def test_clip_higher_moves_the_upper_bound_only():
    losses, _, _ = evaluate("ppo", [[0.5, 1.5]], [[-1.0, 1.0]], clip_high=0.28)
    assert losses.tolist() == [pytest.approx([0.8, -1.28])]


def test_gspo_by_hand():
    # The row's ratio: sqrt(0.5 · 4) = 1.414 over the two tokens inside, above 1 + 0.2.
    ratios, mask = [[0.5, 9.0, 4.0]] * 2, [[True, False, True]] * 2
    losses, gradient, metrics = evaluate("gspo", ratios, [[3.0], [-3.0]], mask)
    root = math.sqrt(2)
    assert losses[:, [0, 2]].tolist() == [pytest.approx([-3.6] * 2), pytest.approx([3 * root] * 2)]
    assert gradient.tolist() == [[0.0, 0.0, 0.0], pytest.approx([3 * root, 0.0, 3 * root])]
    assert metrics["policy/clip_fraction"] == 0.5


def test_gspo_has_the_gradient_of_the_rows_ratio():
    rng = torch.Generator().manual_seed(0)
    old = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    new = (old + 0.05 * torch.randn(4, 6, generator=rng, dtype=torch.float64)).requires_grad_()
    advantages = torch.randn(4, 1, generator=rng, dtype=torch.float64).expand(4, 6)
    inputs = LossInputs(new, old, advantages, torch.ones(4, 6, dtype=torch.bool))
    losses, _ = find_loss("gspo")(inputs, loss_config("gspo", clip_low=0.9, clip_high=9.0))
    token_form = torch.autograd.grad(losses.mean(1).sum(), new)[0]
    row_form = torch.autograd.grad((-advantages[:, 0] * (new - old).mean(1).exp()).sum(), new)[0]
    torch.testing.assert_close(token_form, row_form)


def test_gmpo_by_hand():
    # A > 0: log 0.5 stays (pessimistic), log 4 is clipped to 0.4: exp((log 0.5 + 0.4) / 2).
    # A < 0: log 0.5 is raised to −0.4, log 4 stays: exp((−0.4 + log 4) / 2).
    ratios, mask = [[0.5, 9.0, 4.0]] * 2, [[True, False, True]] * 2
    losses, gradient, metrics = evaluate("gmpo", ratios, [[3.0], [-3.0]], mask, clip_low=0.4, clip_high=0.4)
    good, bad = math.sqrt(0.5 * math.exp(0.4)), math.sqrt(4 * math.exp(-0.4))
    assert losses[:, [0, 2]].tolist() == [pytest.approx([-3 * good] * 2), pytest.approx([3 * bad] * 2)]
    # Every token carries the row's loss, so the sum over two tokens has twice the gradient of the row's.
    assert gradient.tolist() == [pytest.approx([-3 * good, 0.0, 0.0]), pytest.approx([0.0, 0.0, 3 * bad])]
    assert metrics["policy/clip_fraction"] == 0.5


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    losses, gradient, metrics = evaluate("cispo", [[0.5, 1.0, 1.5]], [[2.0]], old=-1.0)
    log_probs = [-1 + math.log(0.5), -1.0, -1 + math.log(1.5)]
    weights = [0.5, 1.0, 1.2]  # no lower bound
    assert losses.tolist() == [pytest.approx([-w * 2 * lp for w, lp in zip(weights, log_probs, strict=True)])]
    assert gradient.tolist() == [pytest.approx([-1.0, -2.0, -2.4])]
    assert metrics["policy/clip_fraction"] == pytest.approx(1 / 3)


def test_cispo_has_a_lower_bound_if_one_is_set():
    _, gradient, _ = evaluate("cispo", [[0.5, 1.0, 1.5]], [[2.0]], clip_low=0.3)
    assert gradient.tolist() == [pytest.approx([-1.4, -2.0, -2.4])]


def test_sapo_by_hand():
    """At ρ = 1 + log 3 the sigmoid of τ = 1 is 3/4, and at ρ = 1 − log 3 / 1.5 that of τ = 1.5 is 1/4."""
    far, near = 1 + math.log(3), 1 - math.log(3) / 1.5
    sapo = {"tau_positive": 1.0, "tau_negative": 1.5}
    losses, gradient, _ = evaluate("sapo", [[far, near]], [[2.0, -3.0]], sapo=sapo)
    assert losses.tolist() == [pytest.approx([-2 * 4 * 3 / 4, 3 * (4 / 1.5) / 4])]
    # d/d log π = −A·ρ·4·s·(1 − s), and both sigmoids have s·(1 − s) = 3/16
    assert gradient.tolist() == [pytest.approx([-2 * far * 0.75, 3 * near * 0.75])]


def test_cpgd_clips_in_log_space():
    losses, gradient, metrics = evaluate("cpgd", [[0.5, 1.1, 1.5]] * 2, [[2.0], [-2.0]])
    up, low, half, near, far = (-1 + math.log(x) for x in (1.2, 0.8, 0.5, 1.1, 1.5))
    assert losses.tolist() == [
        pytest.approx([-2 * half, -2 * near, -2 * up]),
        pytest.approx([2 * low, 2 * near, 2 * far]),
    ]
    assert gradient.tolist() == [pytest.approx([-2.0, -2.0, 0.0]), pytest.approx([0.0, 2.0, 2.0])]
    assert metrics["policy/clip_fraction"] == pytest.approx(2 / 6)


def test_cpgd_drift_pulls_back_with_a_bounded_force():
    cpgd = {"drift_coef": 0.5, "max_drift": 2.0}
    losses, gradient, _ = evaluate("cpgd", [[0.5, 1.0, 2.0, 10.0]], [[0.0]], cpgd=cpgd)
    drift = [-0.25, 0.0, 0.5, 1.0]  # 0.5 · min(ρ − 1, 2)
    assert gradient.tolist() == [pytest.approx(drift)]
    log_probs = [-1 + math.log(r) for r in (0.5, 1.0, 2.0, 10.0)]
    assert losses.tolist() == [pytest.approx([d * lp for d, lp in zip(drift, log_probs, strict=True)])]


def test_clip_cov_leaves_selected_tokens_out():
    losses, gradient, metrics = evaluate(
        "clip_cov", [[0.5, 1.0, 1.5, 5.0]], [[2.0, 2.0, 2.0, -1.0]], selected=[[True, False, True, False]]
    )  # the third is selected and clipped already
    assert losses.tolist() == [pytest.approx([0.0, -2.0, -2.4, 5.0])]  # no dual clip
    assert gradient.tolist() == [pytest.approx([0.0, -2.0, 0.0, 5.0])]
    assert metrics["policy/selected_fraction"] == 0.25


def test_kl_cov_penalises_selected_tokens():
    losses, gradient, metrics = evaluate(
        "kl_cov", [[0.5, 2.0, 2.0]], [[3.0]], selected=[[True, True, False]], covariance={"kl_coef": 0.1}
    )
    assert losses.tolist() == [pytest.approx([-1.5 + 0.1 * math.log(2), -6 + 0.1 * math.log(2), -6.0])]
    assert gradient.tolist() == [pytest.approx([-1.5 - 0.1, -6 + 0.1, -6.0])]
    assert metrics["policy/selected_fraction"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_covariance_losses_ask_for_their_selection(loss):
    with pytest.raises(ValueError, match="selected: missing"):
        evaluate(loss, [[1.0]], [[1.0]])


def test_gpg_is_the_plain_policy_gradient():
    losses, gradient, _ = evaluate("gpg", [[1.0, 3.0]], [[2.0, -1.0]], old=-2.0)
    assert losses.tolist() == [pytest.approx([4.0, -2 + math.log(3)])]
    assert gradient.tolist() == [pytest.approx([-2.0, 1.0])]


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_on_policy_every_loss_has_the_policy_gradient(loss):
    """At ρ = 1 all of them are first-order the same: the gradient of −A·log π, summed with equal weights."""
    ones, selected = [[1.0, 1.0], [1.0, 1.0]], [[False, False], [False, False]]
    _, gradient, _ = evaluate(loss, ones, [[2.0], [-3.0]], selected=selected)
    assert gradient.tolist() == [pytest.approx([-2.0, -2.0]), pytest.approx([3.0, 3.0])]


@settings(max_examples=20, deadline=None)
@given(
    log_ratio=st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4),
    advantage=st.floats(-1e3, 1e3),
)
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_huge_log_ratios_are_finite_in_float32(loss, log_ratio, advantage):
    old = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    log_probs = (old + torch.tensor(log_ratio).reshape(2, 2)).requires_grad_()
    inputs = LossInputs(
        log_probs,
        old,
        torch.full((2, 2), advantage),
        torch.ones(2, 2, dtype=torch.bool),
        selected=torch.tensor([[True, False], [False, True]]),
    )
    losses, metrics = find_loss(loss)(inputs, loss_config(loss, cpgd={"drift_coef": 1.0}))
    (gradient,) = torch.autograd.grad(losses.sum(), log_probs)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(gradient).all()
    assert all(math.isfinite(total) for total, _ in metrics.values())
