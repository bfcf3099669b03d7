import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.algorithm_config import KLConfig
from embodyflow.algorithms.kl import estimate_kl, kl_penalty, update_kl_coef


def value_and_gradient(difference, estimator):
    log_probs = torch.tensor([[-1.0 + difference]], dtype=torch.float64, requires_grad=True)
    kl = estimate_kl(log_probs, torch.tensor([[-1.0]], dtype=torch.float64), estimator)
    (gradient,) = torch.autograd.grad(kl.sum(), log_probs)
    return kl.item(), gradient.item()


@pytest.mark.parametrize("d", [-0.7, 0.0, 0.3])
def test_estimators_by_hand(d):
    k3 = math.exp(-d) + d - 1
    expected = {
        "k1": (d, 1.0),
        "k2": (d * d / 2, d),
        "k3": (k3, 1 - math.exp(-d)),
        "abs": (abs(d), float((d > 0) - (d < 0))),
        "k1+": (d, d),
        "k3+": (k3, d),
        "abs+": (abs(d), d),
    }
    for estimator, numbers in expected.items():
        assert value_and_gradient(d, estimator) == pytest.approx(numbers, abs=1e-12), estimator


def test_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator=k4: allowed are k1"):
        estimate_kl(torch.zeros(1, 1), torch.zeros(1, 1), "k4")


@settings(max_examples=50, deadline=None)
@given(d=st.floats(-1e6, 1e6), estimator=st.sampled_from(["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"]))
def test_never_nan_and_k3_bounded(d, estimator):
    value, gradient = value_and_gradient(d, estimator)
    assert math.isfinite(value)
    assert math.isfinite(gradient)
    if estimator.startswith("k3"):
        assert 0 <= value <= 10 + 1e-9


def test_k1_and_k3_estimate_the_divergence_of_two_distributions():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    divergence = (p * (p.log() - q.log())).sum()
    for estimator in ("k1", "k3"):
        expectation = (p * estimate_kl(p.log()[None], q.log()[None], estimator)[0]).sum()
        torch.testing.assert_close(expectation, divergence)


def test_k2_gradient_is_the_divergences():
    """E_p[∇k2] = ∇KL(p‖q), which is why the forms with + exist."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    log_p = logits.log_softmax(0)
    p = log_p.exp().detach()
    estimate = (p * estimate_kl(log_p[None], q.log()[None], "k3+")[0]).sum()
    (gradient,) = torch.autograd.grad(estimate, logits, retain_graph=True)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits)
    torch.testing.assert_close(gradient, exact)


def test_kl_in_reward():
    log_probs = torch.tensor([[-1.0, -2.0, math.nan]])
    reference = torch.tensor([[-1.5, -1.0, math.nan]])
    mask = torch.tensor([[True, True, False]])
    assert kl_penalty(log_probs, reference, mask, 0.2, "k1").tolist() == [pytest.approx([0.1, -0.2, 0.0])]


def test_fixed_coefficient_stays():
    assert update_kl_coef(0.3, observed_kl=99.0, num_rows=64, config=KLConfig(coef=0.3)) == 0.3


@pytest.mark.parametrize(
    ("observed", "factor"),
    [(0.1, 1.0), (0.11, 1 + 0.1 * 0.01), (5.0, 1 + 0.2 * 0.01), (0.0, 1 - 0.2 * 0.01)],
)
def test_adaptive_coefficient(observed, factor):
    config = KLConfig(coef=0.3, target=0.1, horizon=10_000)
    assert update_kl_coef(0.3, observed, num_rows=100, config=config) == pytest.approx(0.3 * factor)


def test_a_coefficient_moves_to_its_final_one_by_equal_steps():
    config = KLConfig(coef=0.4, final_coef=0.1)
    coefs = [config.annealed_coef(iteration, 4) for iteration in (1, 2, 3, 4, 9)]
    assert coefs == [pytest.approx(coef) for coef in (0.4, 0.3, 0.2, 0.1, 0.1)]
    assert config.annealed_coef(1, 1) == 0.4 and KLConfig(coef=0.4).annealed_coef(3, 4) == 0.4


@given(st.floats(0, 1e6), st.integers(0, 10**9), st.integers(1, 10**6))
def test_an_adaptive_coefficient_stays_positive(observed, num_rows, horizon):
    config = KLConfig(coef=0.3, target=0.1, horizon=horizon)
    assert 0.8 * 0.3 <= update_kl_coef(0.3, observed, num_rows, config) <= 1.2 * 0.3 + 1e-12
