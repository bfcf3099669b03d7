"""The Gaussian policy against torch.distributions: its density, its samples and its critic."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Normal

from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.critic_mlp_gaussian import MLPGaussianCritic
from embodyflow.policies.control.mlp_gaussian.modeling_mlp_gaussian import gaussian_log_prob
from embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.policies.flow_sde import standard_normals

CONFIG = MLPGaussianConfig(state_dim=3, action_dim=2, hidden_size=8, initial_log_std=-0.5)


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return MLPGaussianPolicy(CONFIG, "cpu")


def batch(num_rows, num_decisions, mask):
    rng = np.random.default_rng(0)
    return TensorDict(
        {
            "state": torch.from_numpy(rng.normal(size=(num_rows, num_decisions, 3)).astype(np.float32)),
            "action_tokens": torch.from_numpy(rng.normal(size=(num_rows, num_decisions, 2)).astype(np.float32)),
            "loss_mask": torch.tensor(mask).unsqueeze(-1),
            "instruction_ids": torch.zeros(num_rows, 1, dtype=torch.int64),
        },
        batch_size=[num_rows],
    )


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_log_probs_and_entropy_match_the_normal_distribution(policy, temperature):
    mask = [[True, True], [True, False]]
    rows = batch(2, 2, mask)
    log_probs, entropy = policy.evaluate(rows, temperature)
    mean, log_std = policy.model(rows["state"])
    normal = Normal(mean, log_std.exp() * temperature**0.5)
    keep = torch.tensor(mask)
    torch.testing.assert_close(log_probs[..., 0], normal.log_prob(rows["action_tokens"]).sum(-1) * keep)
    torch.testing.assert_close(entropy[..., 0], normal.entropy().sum(-1) * keep)


def test_samples_follow_the_density_that_evaluate_uses(policy):
    state = np.tile(np.array([[0.3, -1.0, 2.0]], np.float32), (20_000, 1))
    decision = policy.act({"state": state}, np.random.default_rng(0).random((20_000, 2)), 1.0)
    mean, log_std = policy.model(torch.from_numpy(state[:1]))
    assert np.abs(decision.tokens.mean(0) - mean[0].detach().numpy()).max() < 0.02
    assert np.abs(decision.tokens.std(0) - log_std.exp().detach().numpy()).max() < 0.02
    rows = batch(20_000, 1, [[True]] * 20_000)
    rows["state"], rows["action_tokens"] = torch.from_numpy(state)[:, None], torch.from_numpy(decision.tokens)[:, None]
    assert np.abs(policy.evaluate(rows, 1.0)[0][:, 0].detach().numpy() - decision.log_probs).max() < 1e-5
    assert decision.actions.shape == (20_000, 1, 2)


def test_greedy_is_the_mean(policy):
    state = np.ones((1, 3), np.float32)
    mean, _ = policy.model(torch.from_numpy(state))
    assert policy.act({"state": state}, None, 1.0).actions[0].tolist() == mean.tolist()


@pytest.mark.parametrize(("num_envs", "action_dim"), [(1, 1), (3, 5), (8, 6), (5, 17)])
@pytest.mark.parametrize("normalize", [False, True])
def test_prepared_steps_are_bit_identical_to_the_model(num_envs, action_dim, normalize):
    sizes = {"state_dim": 3, "action_dim": action_dim, "hidden_size": 9, "initial_log_std": -0.5}
    policy = MLPGaussianPolicy(MLPGaussianConfig(**sizes, normalize_observations=normalize), "cpu")
    rng = np.random.default_rng(0)
    uniforms = rng.random((4, num_envs, action_dim))
    states = rng.normal(size=(4, num_envs, 3)).astype(np.float32)
    decide = policy.prepare_steps(uniforms, 0.9)
    for t, state in enumerate(states):
        prepared, single = decide(t, state), policy.act({"state": state}, uniforms[t], 0.9)
        with torch.inference_mode():
            mean, log_std = policy.model(torch.from_numpy(state))
            log_std = log_std + 0.5 * np.log(0.9)
            normals = standard_normals(torch.from_numpy(uniforms[t]))
            actions, log_probs = mean + log_std.exp() * normals, gaussian_log_prob(normals, log_std)
        for decision in (prepared, single):
            assert np.array_equal(decision.tokens, actions) and np.array_equal(decision.actions[:, 0], actions)
            assert np.array_equal(decision.log_probs[:, 0], log_probs)


def test_the_critic_values_decisions_only():
    critic = MLPGaussianCritic(CONFIG, "cpu")
    rows = batch(2, 2, [[True, False], [True, True]])
    values = critic.evaluate(rows)
    assert values[0, 1] == 0
    torch.testing.assert_close(values[1], critic.model(rows["state"][1]))
