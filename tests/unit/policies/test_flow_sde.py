"""Flow-SDE against a known flow: that of a Gaussian target has a linear velocity and Gaussian marginals."""

import math

import numpy as np
import pytest
import torch

from embodyflow.policies.flow_sde import FlowSDE, standard_normals

MEAN, STD = 0.8, 0.3
"""Mean and deviation of actions. At time t the mean is (1 - t)·MEAN and the variance (1 - t)²·STD² + t²."""


def velocity(x: torch.Tensor, t: float) -> torch.Tensor:
    """Return E[noise - action | x], by regression of the jointly Gaussian noise and action on x."""
    mean, variance = (1 - t) * MEAN, (1 - t) ** 2 * STD**2 + t**2
    noise = t * (x - mean) / variance
    action = MEAN + (1 - t) * STD**2 * (x - mean) / variance
    return noise - action


def denoise(flow: FlowSDE, x: torch.Tensor, generator: torch.Generator | None) -> list[torch.Tensor]:
    """Return the samples at each time, float [n, 1] each."""
    points = [x]
    for step, t in enumerate(flow.times):
        v = velocity(x, t)
        if generator is None:
            x = flow.deterministic(x, v, step)
        else:
            one = slice(step, step + 1)
            noise = torch.randn(x.shape, generator=generator)
            x = flow.means(x[:, None], v[:, None], one)[:, 0] + flow.deviations(one, x, 1.0) * noise
        points.append(x)
    return points


@pytest.mark.parametrize("noise_level", [None, 0.3, 0.5])
def test_marginals_match_the_flow_with_and_without_noise(noise_level: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    flow = FlowSDE(200, noise_level or 1.0)
    points = denoise(flow, torch.randn(100_000, 1, generator=generator), generator if noise_level else None)
    for t, x in zip([*flow.times, 0.0][::20], points[::20], strict=True):
        assert x.mean().item() == pytest.approx((1 - t) * MEAN, abs=0.015), t
        assert x.std().item() == pytest.approx(math.sqrt((1 - t) ** 2 * STD**2 + t**2), abs=0.015), t


def test_steps_approach_the_ordinary_equation_as_noise_vanishes() -> None:
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    certain = denoise(FlowSDE(10, 1.0), x, None)[-1]
    gaps = [
        (denoise(FlowSDE(10, level), x, torch.Generator().manual_seed(1))[-1] - certain).abs().max().item()
        for level in (0.5, 0.05, 0.0005)
    ]
    assert gaps[0] > 0.5 and gaps[1] < 0.2 * gaps[0] and 0 < gaps[2] < 0.02 * gaps[1]


def test_steps_by_hand() -> None:
    flow = FlowSDE(4, 0.5)
    assert flow.times == [1.0, 0.75, 0.5, 0.25]
    point, v = torch.full((4, 1), 2.0), torch.full((4, 1), -3.0)
    # σ² = 0.25·t/(1 - t), for the first step with the 1 - t of the second: 1, 0.75, 0.25, 0.0833…
    for step, (t, variance) in enumerate(((1.0, 1.0), (0.75, 0.75), (0.5, 0.25), (0.25, 0.25 / 3))):
        mean = 2.0 - 0.25 * (-3.0 + variance / (2 * t) * (2.0 + (1 - t) * -3.0))
        one = slice(step, step + 1)
        assert flow.means(point[one], v[one], one).item() == pytest.approx(mean)
        assert flow.deviations(one, point, 1.0).item() == pytest.approx(math.sqrt(0.25 * variance))
        assert flow.deviations(one, point, 1.44).item() == pytest.approx(1.2 * math.sqrt(0.25 * variance))


def test_log_probs_and_entropy_match_torchs_normal() -> None:
    flow = FlowSDE(5, 0.7)
    generator = torch.Generator().manual_seed(0)
    chain, v = (torch.randn(3, size, 2, generator=generator) for size in (6, 5))
    every = slice(None)
    normal = torch.distributions.Normal(flow.means(chain[:, :-1], v, every), flow.deviations(every, chain, 1.6))
    torch.testing.assert_close(flow.log_probs(chain, v, 1.6), normal.log_prob(chain[:, 1:]))
    torch.testing.assert_close(flow.entropy(chain, 1.6), normal.entropy()[0, :, 0])


def test_uniforms_become_standard_normals() -> None:
    uniforms = torch.from_numpy(np.random.default_rng(0).random(200_000, dtype=np.float32))
    normals = standard_normals(uniforms)
    assert normals.mean().abs() < 0.01 and (normals.std() - 1).abs() < 0.01
    assert standard_normals(torch.tensor([0.0, 0.5])).isfinite().all() and standard_normals(torch.tensor(0.5)) == 0


def test_later_steps_remove_the_extra_variance_of_the_first() -> None:
    flow, generator = FlowSDE(200, 1.0), torch.Generator().manual_seed(0)
    points = denoise(flow, torch.randn(100_000, 1, generator=generator), generator)
    # At t = 1 the mean is (1 - a²/2)·x and the variance a²: with a = 1, 1/4 + 1.
    assert points[1].var().item() == pytest.approx(1.25, abs=0.02)
    assert points[100].std().item() == pytest.approx(math.sqrt(0.25 * STD**2 + 0.25), abs=0.015)
    assert points[-1].std().item() == pytest.approx(STD, abs=0.015)
