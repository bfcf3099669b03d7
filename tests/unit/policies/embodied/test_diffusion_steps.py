"""Denoising steps against hand-computed numbers, DDPM's own formulas, and a diffusion whose velocity is known."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.policies.embodied.diffusion.steps_diffusion import DenoisingSteps, signal_shares

MEAN, STD = 0.8, 0.3
"""Mean and deviation of actions. At the share ᾱ the mean is √ᾱ·MEAN and the variance ᾱ·STD² + 1 - ᾱ."""


def new_steps(num_levels: int, num_steps: int, **keys: Any) -> DenoisingSteps:
    noise = {"eta": 1.0, "min_noise": 1e-6, "min_log_prob_noise": 1e-6}
    return DenoisingSteps(num_levels, num_steps, **(noise | keys))


def test_the_cosine_schedule_by_hand() -> None:
    # The curve is cos²(0.0124665), cos²(0.7916306) and 0 at the levels 0, 1 and 2; a level keeps at least a thousandth.
    assert signal_shares(2) == pytest.approx([1.0, 0.4938436, 0.0004938436], rel=1e-5)


@given(st.integers(1, 1000))
def test_shares_fall_from_one_and_stay_positive(num_levels: int) -> None:
    shares = signal_shares(num_levels)
    assert shares[0] == 1 and len(shares) == num_levels + 1 and shares[-1] > 0
    assert all(after < before for before, after in pairwise(shares))


@given(st.integers(1, 1000), st.data())
def test_steps_begin_at_the_noisiest_level_and_never_stand_still(num_levels: int, data: st.DataObject) -> None:
    num_steps = data.draw(st.integers(1, num_levels))
    levels = new_steps(num_levels, num_steps).levels
    assert levels[0] == num_levels and levels[-1] >= 1 and len(levels) == num_steps
    gaps = [before - after for before, after in pairwise([*levels, 0])]
    assert min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


def test_steps_by_hand() -> None:
    steps = new_steps(2, 2, min_noise=0.1, min_log_prob_noise=0.2)
    assert steps.levels == [2, 1]
    noisy, half = 0.0004938436, 0.4938436
    point, velocity = torch.full((2, 1), 2.0), torch.full((2, 1), -3.0)
    # σ² = (1 - 0.4938436) / (1 - 0.0004938436) · (1 - 0.001) = 0.5059001
    variance = 0.5059001
    action = math.sqrt(noisy) * 2.0 + math.sqrt(1 - noisy) * 3.0
    noise = math.sqrt(1 - noisy) * 2.0 - math.sqrt(noisy) * 3.0
    expected = [
        math.sqrt(half) * action + math.sqrt(1 - half - variance) * noise,
        math.sqrt(half) * 2.0 + math.sqrt(1 - half) * 3.0,  # the last step ends at the action itself
    ]
    assert steps.means(point, velocity, slice(None)).flatten().tolist() == pytest.approx(expected, rel=1e-4)
    for step, (mean, deviation, measured) in enumerate(
        zip(expected, (math.sqrt(variance), 0.1), (math.sqrt(variance), 0.2), strict=True)
    ):
        one = slice(step, step + 1)
        assert steps.means(point[one], velocity[one], one).item() == pytest.approx(mean, rel=1e-4)
        assert steps.deviations(one, point, 1.0).item() == pytest.approx(deviation, rel=1e-5)
        assert steps.deviations(one, point, 1.44).item() == pytest.approx(1.2 * deviation, rel=1e-5)
        chain = torch.tensor([[2.0], [mean + measured]])  # one deviation away
        log_prob = -0.5 - math.log(measured) - 0.5 * math.log(2 * math.pi)
        assert steps.log_probs(chain, velocity[one], one, 1.0).item() == pytest.approx(log_prob, rel=1e-3)
    certain = math.sqrt(half) * action + math.sqrt(1 - half) * noise
    assert steps.deterministic(point[0], velocity[0], 0).item() == pytest.approx(certain, rel=1e-4)


@given(st.integers(1, 60), st.floats(-3, 3), st.floats(-3, 3), st.data())
def test_with_all_levels_and_full_noise_the_steps_are_ddpms(
    num_levels: int, point: float, velocity: float, data: st.DataObject
) -> None:
    """Compare with the posterior of Ho et al., 2020, arXiv:2006.11239, equations 6 and 7."""
    steps, shares = new_steps(num_levels, num_levels), signal_shares(num_levels)
    level = data.draw(st.integers(1, num_levels))
    now, after = shares[level], shares[level - 1]
    beta = 1 - now / after
    action = math.sqrt(now) * point - math.sqrt(1 - now) * velocity
    mean = math.sqrt(after) * beta / (1 - now) * action + math.sqrt(1 - beta) * (1 - after) / (1 - now) * point
    deviation = math.sqrt((1 - after) / (1 - now) * beta)
    one, like = slice(num_levels - level, num_levels - level + 1), torch.zeros(1, 1, dtype=torch.float64)
    found = steps.means(like + point, like + velocity, one).item()
    assert found == pytest.approx(mean, abs=1e-6)
    assert steps.deviations(one, like, 1.0).item() == pytest.approx(max(deviation, 1e-6), rel=1e-6)


@given(st.floats(0, 1), st.floats(0.01, 0.5), st.floats(0, 0.5))
def test_no_step_has_less_noise_than_the_least(eta: float, min_noise: float, more: float) -> None:
    steps = new_steps(20, 5, eta=eta, min_noise=min_noise, min_log_prob_noise=min_noise + more)
    like = torch.zeros(1, 1, dtype=torch.float64)
    sampled = steps.deviations(slice(None), like, 1.0)
    assert sampled.min().item() == pytest.approx(min_noise)
    measured = (steps.entropy(slice(None), like, 1.0) - 0.5 * math.log(2 * math.pi * math.e)).exp()
    assert measured.min().item() == pytest.approx(min_noise + more)
    assert (measured >= sampled[:, 0] - 1e-9).all()


def test_log_probs_and_entropy_match_torchs_normal() -> None:
    steps = new_steps(50, 6, eta=0.7, min_noise=0.2, min_log_prob_noise=0.2)
    generator, last = torch.Generator().manual_seed(0), slice(2, None)
    chain, velocities = (torch.randn(3, size, 2, generator=generator) for size in (5, 4))
    normal = torch.distributions.Normal(
        steps.means(chain[:, :-1], velocities, last), steps.deviations(last, chain, 1.6)
    )
    torch.testing.assert_close(steps.log_probs(chain, velocities, last, 1.6), normal.log_prob(chain[:, 1:]))
    torch.testing.assert_close(steps.entropy(last, chain, 1.6), normal.entropy()[0, :, 0])


def test_mixtures_and_velocities_give_back_actions_and_noise() -> None:
    steps, shares = new_steps(10, 10), signal_shares(10)
    generator = torch.Generator().manual_seed(0)
    actions, noise = (torch.randn(11, 3, 2, generator=generator) for _ in range(2))
    points, velocities = steps.mixed(actions, noise, torch.arange(11))
    assert torch.equal(points[0], actions[0]) and torch.equal(velocities[0], noise[0])
    for level, share in enumerate(shares):
        signal, rest = math.sqrt(share), math.sqrt(1 - share)
        torch.testing.assert_close(signal * points[level] - rest * velocities[level], actions[level])
        torch.testing.assert_close(rest * points[level] + signal * velocities[level], noise[level])


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_marginals_match_the_diffusion_whatever_the_noise(eta: float) -> None:
    generator, shares = torch.Generator().manual_seed(0), signal_shares(100)
    steps, points = new_steps(100, 100, eta=eta), torch.randn(50_000, 1, generator=generator)
    for step, level in enumerate(steps.levels):
        share = shares[level]
        if level in (75, 50, 25):
            assert points.mean().item() == pytest.approx(math.sqrt(share) * MEAN, abs=0.02), level
            assert points.std().item() == pytest.approx(math.sqrt(share * STD**2 + 1 - share), abs=0.02), level
        # Regression of the jointly Gaussian noise and action on the point.
        away = (points - math.sqrt(share) * MEAN) / (share * STD**2 + 1 - share)
        noise, action = math.sqrt(1 - share) * away, MEAN + math.sqrt(share) * STD**2 * away
        velocities, one = math.sqrt(share) * noise - math.sqrt(1 - share) * action, slice(step, step + 1)
        drawn = steps.deviations(one, points, 1.0) * torch.randn(points.shape, generator=generator)
        points = steps.means(points[:, None], velocities[:, None], one)[:, 0] + drawn
    assert points.mean().item() == pytest.approx(MEAN, abs=0.02)
    assert points.std().item() == pytest.approx(STD, abs=0.02)
