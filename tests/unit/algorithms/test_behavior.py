"""The decoupled objective, against numbers worked out by hand and against the gradient that it estimates."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.algorithms.algorithm_config import AlgorithmConfig, RejectionConfig
from embodyflow.algorithms.behavior import behavior_weights, interpolated_proximal
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.objective import policy_objective

PROXIMAL = AlgorithmConfig(old_log_probs="proximal")
GSPO = AlgorithmConfig(
    loss="gspo", aggregation="seq_mean_token_mean", old_log_probs="proximal", max_behavior_weight=100.0
)


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


MASK = torch.tensor([[True, True, True, False]])


def test_a_token_is_weighted_by_the_ratio_of_proximal_to_behavior_policy() -> None:
    proximal = row(math.log(0.5), math.log(0.2), math.log(0.9), math.nan)
    behavior = row(math.log(0.25), math.log(0.4), math.log(0.09), 0.0)
    weights = behavior_weights(proximal, behavior, MASK, PROXIMAL)
    assert weights[0].tolist() == pytest.approx([2.0, 0.5, 5.0, 1.0])  # the third is 10, and the bound 5


def test_a_loss_per_row_has_a_weight_per_row() -> None:
    proximal, behavior = row(-1.0, -2.0, -3.0, 7.0), row(-1.5, -2.5, -5.0, 0.0)
    weights = behavior_weights(proximal, behavior, MASK, GSPO)
    assert weights[0].tolist() == pytest.approx([math.e, math.e, math.e, 1.0])


def test_the_proximal_policy_is_interpolated_by_the_versions_of_tokens() -> None:
    """Tokens 0, 1 and 2 versions older than the proximal policy: none, a half and two thirds of the way."""
    log_probs = row(-0.5, -0.4, -0.4, 9.0).requires_grad_()
    proximal = interpolated_proximal(log_probs, row(-1.0, -1.0, -1.0, 0.0), torch.tensor([[0, 1, 2, 0]]))
    assert proximal[0].tolist() == pytest.approx([-1.0, -0.7, -0.6, 0.0])
    assert not proximal.requires_grad


def objective(log_probs: torch.Tensor, old: torch.Tensor, acted: torch.Tensor | None, **terms: object) -> torch.Tensor:
    config = AlgorithmConfig(old_log_probs="proximal", max_behavior_weight=1e6, clip_ratio_c=None, **terms)
    mask = torch.ones_like(old, dtype=torch.bool)
    weights = None if acted is None else behavior_weights(old, acted, mask, config)
    advantages = torch.linspace(-1, 2, old.numel(), dtype=torch.float64).view_as(old)
    terms_of = {"ref_log_probs": log_probs.detach() - 0.1, "entropy": -log_probs}
    inputs = LossInputs(log_probs, old, advantages, mask, **terms_of, behavior_weights=weights)
    return policy_objective(inputs, torch.ones_like(old), config)[0]


log_probs_of = st.lists(st.floats(-3, -0.1), min_size=4, max_size=4).map(lambda numbers: row(*numbers))


@given(log_probs_of, log_probs_of)
def test_where_the_proximal_policy_acted_nothing_changes(log_probs: torch.Tensor, old: torch.Tensor) -> None:
    assert objective(log_probs, old, old).item() == pytest.approx(objective(log_probs, old, None).item())


@given(log_probs_of, log_probs_of)
def test_before_the_first_step_the_gradient_is_the_importance_weighted_one(
    log_probs: torch.Tensor, acted: torch.Tensor
) -> None:
    """At π = π_prox nothing is clipped, and weight × ratio is π / π_behav."""
    ours, plain = log_probs.clone().requires_grad_(), log_probs.clone().requires_grad_()
    objective(ours, log_probs, acted).backward()
    objective(plain, acted, None, clip_low=0.999999, clip_high=1e6).backward()
    torch.testing.assert_close(ours.grad, plain.grad)


def test_the_weight_applies_to_the_policy_loss_only() -> None:
    log_probs, acted = row(-1.0, -1.0), row(-2.0, -2.0)
    terms = {"kl": {"coef": 0.5, "estimator": "k1"}, "entropy_coef": 0.25}
    with_terms = objective(log_probs, log_probs, acted, **terms) - objective(log_probs, log_probs, acted)
    assert with_terms.item() == pytest.approx(2 * (0.5 * 0.1 - 0.25 * 1.0))


def test_metrics_tell_how_far_they_are_and_how_many_are_bounded() -> None:
    old, acted, mask = row(-1.0, -1.0, -1.0), row(-1.0, -1.0, -9.0), torch.ones(1, 3, dtype=torch.bool)
    inputs = LossInputs(old, old, old, mask, behavior_weights=behavior_weights(old, acted, mask, PROXIMAL))
    metrics = policy_objective(inputs, torch.ones_like(old), PROXIMAL)[1]
    assert [float(number) for number in metrics["policy/behavior_weight"]] == pytest.approx([7.0, 3.0])
    assert [float(number) for number in metrics["policy/behavior_bounded_fraction"]] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("level", "low", "high", "expected"),
    [
        ("token", 0.5, 2.0, [2.0, 0.5, 0.0, 1.0]),  # 2 and 1/2 lie on the bounds, 8 does not
        ("token", 0.6, 10.0, [2.0, 0.0, 5.0, 1.0]),  # 8 is kept and bounded
        ("sequence", 0.5, 2.1, [2.0, 0.5, 5.0, 1.0]),  # geometric mean of 2, 1/2, 8: 2
        ("sequence", 0.5, 1.9, [0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_rejected_tokens_have_the_weight_zero(level: str, low: float, high: float, expected: list[float]) -> None:
    rejection = {"level": level, "low": low - 1e-9, "high": high + 1e-9}
    config = AlgorithmConfig(old_log_probs="proximal", rejection=rejection)
    proximal = row(math.log(0.2), math.log(0.1), math.log(0.8), math.nan)
    behavior = row(math.log(0.1), math.log(0.2), math.log(0.1), 0.0)
    assert behavior_weights(proximal, behavior, MASK, config)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_loss_per_row_rejects_whole_rows(level: str) -> None:
    config = GSPO.model_copy(update={"rejection": RejectionConfig(level=level, high=2.0)})
    proximal, behavior = row(-1.0, -2.0, -3.0, 7.0), row(-1.5, -2.5, -5.0, 0.0)
    assert behavior_weights(proximal, behavior, MASK, config)[0].tolist() == [0.0, 0.0, 0.0, 1.0]
