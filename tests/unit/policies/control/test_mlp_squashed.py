"""The squashed Gaussian's density, and what the policy records."""

import math

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.control.mlp_squashed.configuration_mlp_squashed import MLPSquashedConfig
from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import squash
from embodyflow.policies.control.mlp_squashed.policy_mlp_squashed import MLPSquashedPolicy

CONFIG = MLPSquashedConfig(state_dim=3, action_dim=2, hidden_size=8)


def test_the_density_is_the_gaussians_over_the_slope_of_tanh() -> None:
    mean, log_std, noise = torch.tensor([[0.3, -0.2]]), torch.tensor([[0.1, -1.0]]), torch.tensor([[0.5, -2.0]])
    actions, log_probs = squash(mean, log_std, noise)
    expected = 0.0
    for m, s, e in ((0.3, math.exp(0.1), 0.5), (-0.2, math.exp(-1.0), -2.0)):
        density = math.exp(-e * e / 2) / (s * math.sqrt(2 * math.pi))
        expected += math.log(density / (1 - math.tanh(m + s * e) ** 2))
    torch.testing.assert_close(log_probs.sum(-1), torch.tensor([expected]))
    torch.testing.assert_close(actions, torch.tanh(mean + log_std.exp() * noise))


def test_the_density_of_a_saturated_action_is_finite() -> None:
    _, log_probs = squash(torch.tensor([[30.0]]), torch.tensor([[0.0]]), torch.tensor([[0.0]]))
    # log(1 - tanh(x)^2) nears log 4 - 2x.
    torch.testing.assert_close(log_probs[0], torch.tensor([-0.5 * math.log(2 * math.pi) - math.log(4) + 60]))


def test_the_density_integrates_to_one() -> None:
    actions = torch.linspace(-0.9999, 0.9999, 200_001, dtype=torch.float64)[:, None]
    mean, log_std = torch.full_like(actions, 0.4), torch.full_like(actions, -0.5)
    density = squash(mean, log_std, (torch.atanh(actions) - mean) * torch.exp(-log_std))[1].sum(-1).exp()
    assert abs(float(torch.trapezoid(density, actions[:, 0])) - 1) < 1e-3


def test_recorded_log_probs_are_found_again() -> None:
    torch.manual_seed(0)
    policy = MLPSquashedPolicy(CONFIG, "cpu")
    draws = np.random.default_rng(0)
    state, uniforms = draws.normal(size=(64, 3)).astype(np.float32), draws.random((64, 2))
    for temperature in (1.0, 0.5):
        decision = policy.act({"state": state}, uniforms, temperature)
        assert np.abs(decision.actions).max() < 1 and decision.tokens.dtype == policy.token_dtype
        columns = {
            "state": state[:, None],
            "action_tokens": decision.tokens[:, None],
            "loss_mask": np.ones((64, 1, 1), bool),
        }
        batch = TensorDict({name: torch.from_numpy(each) for name, each in columns.items()}, batch_size=[64])
        log_probs, entropy = policy.evaluate(batch, temperature)
        np.testing.assert_allclose(log_probs[:, 0].detach(), decision.log_probs, atol=1e-4)
        assert entropy.equal(-log_probs)


def test_a_greedy_action_squashes_the_mean() -> None:
    policy = MLPSquashedPolicy(CONFIG, "cpu")
    state = np.ones((2, 3), np.float32)
    mean, _ = policy.model(torch.from_numpy(state))
    np.testing.assert_allclose(policy.act({"state": state}, None, 1.0).actions[:, 0], mean.tanh().detach(), rtol=1e-6)
