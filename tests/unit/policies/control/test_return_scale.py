"""Scaling of rewards against numbers worked out by hand, and against VecNormalize of Stable-Baselines3."""

import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from embodyflow.policies.control.mlp_categorical.configuration_mlp_categorical import MLPCategoricalConfig
from embodyflow.policies.control.mlp_categorical.policy_mlp_categorical import MLPCategoricalPolicy
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.critic_mlp_gaussian import MLPGaussianCritic
from embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.policies.running_statistics.return_scale import ReturnScale, count_returns, return_scale_of
from embodyflow.policies.running_statistics.running_normalizer import EPSILON, normalizers_of


def alone(tensor):
    return tensor.clone()


def column(values):
    """Return numbers as a column of one row, ``[1, T]``."""
    return torch.tensor([values])


def test_rewards_are_divided_by_the_deviation_of_returns():
    scale, decided = ReturnScale(10.0), torch.ones(1, 2, dtype=torch.bool)
    # The returns 1 and 5 have the variance 4.
    scaled = scale.scaled(torch.tensor([[[3.0], [-1.0]]]), column([1.0, 5.0]), decided, alone)
    assert scaled.flatten().tolist() == pytest.approx([1.5, -0.5])
    assert (scale.count.item(), scale.variance.item()) == (0, 1), "scaling counts nothing"
    count_returns(scale, column([1.0, 5.0]), decided, alone)
    assert (scale.count.item(), scale.mean.item(), scale.variance.item()) == (2, 3, 4)
    # With 3 and 3 the mean stays 3 and the variance becomes (4 + 4 + 0 + 0) / 4.
    scaled = scale.scaled(torch.tensor([[[3.0], [-1.0]]]), column([3.0, 3.0]), decided, alone)
    assert scaled.flatten().tolist() == pytest.approx([3 / 2**0.5, -1 / 2**0.5])


def test_scaled_rewards_are_clipped_on_both_sides():
    scaled = ReturnScale(2.0).scaled(
        torch.tensor([[[9.0], [-9.0]]]), column([-1.0, 1.0]), torch.ones(1, 2).bool(), alone
    )
    assert scaled.flatten().tolist() == [2, -2]
    assert scaled.dtype == torch.float32


def test_only_decisions_count():
    scale, decided = ReturnScale(10.0), torch.tensor([[True, False, True]])
    count_returns(scale, column([2.0, 100.0, 4.0]), decided, alone)
    assert (scale.count.item(), scale.mean.item(), scale.variance.item()) == (2, 3, 1)
    before = copy.deepcopy(scale.state_dict())
    count_returns(scale, column([1.0, 2.0, 3.0]), torch.zeros(1, 3).bool(), alone)
    assert all(torch.equal(value, before[name]) for name, value in scale.state_dict().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_return_that_is_no_number_is_refused(bad):
    scale = ReturnScale(10.0)
    with pytest.raises(FloatingPointError, match="rewards: a discounted return is NaN or inf"):
        count_returns(scale, column([1.0, bad]), torch.ones(1, 2).bool(), alone)
    assert scale.count.item() == 0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.integers(0, 12), st.floats(1e-3, 1e3))
def test_two_ranks_agree_bit_for_bit_and_with_one(seed, first, size):
    draw = np.random.default_rng(seed)
    returns, rewards = (torch.from_numpy(draw.normal(size, size, (12, 3)).astype(np.float32)) for _ in range(2))
    decided, barrier, parts = torch.from_numpy(draw.random((12, 3)) < 0.7), Barrier(2), [torch.empty(0)] * 2

    def work(rank):
        def all_reduce(tensor):
            parts[rank] = tensor
            barrier.wait()
            total = parts[0] + parts[1]
            barrier.wait()
            return total

        mine, scale = slice(first) if rank == 0 else slice(first, None), ReturnScale(10.0)
        scaled = scale.scaled(rewards[mine, :, None], returns[mine], decided[mine], all_reduce)
        count_returns(scale, returns[mine], decided[mine], all_reduce)
        return scaled, scale

    with ThreadPoolExecutor(2) as pool:
        (left, one), (right, other) = pool.map(work, range(2))
    whole = ReturnScale(10.0)
    expected = whole.scaled(rewards[..., None], returns, decided, alone)
    count_returns(whole, returns, decided, alone)
    torch.testing.assert_close(torch.cat([left, right]), expected)
    for name, value in whole.state_dict().items():
        assert torch.equal(one.state_dict()[name], other.state_dict()[name])
        torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_statistics_and_scale_are_those_of_stable_baselines3():
    """Pendulum for 70 steps with episodes of 30, in three environments."""
    gamma, num_steps = 0.9, 70
    env = make_vec_env("Pendulum-v1", 3, seed=0, env_kwargs={"max_episode_steps": 30})
    peer, draw = VecNormalize(env, norm_obs=False, gamma=gamma), np.random.default_rng(0)
    peer.ret_rms.count = 1e-12  # its 1e-4 steps of mean 0 and variance 1 before the first
    peer.reset()
    running, rewards, returns = np.zeros(3), [], []
    for _ in range(num_steps):
        _, scaled, dones, _ = peer.step(draw.uniform(-2, 2, (3, 1)))
        rewards.append(peer.get_original_reward())
        running = gamma * running + rewards[-1]
        returns.append(running)
        running = np.where(dones, 0.0, running)
    peer.close()
    columns, decided = np.stack(returns, 1), torch.ones(3, num_steps).bool()
    scale = ReturnScale(10.0)
    ours = scale.scaled(torch.from_numpy(np.stack(rewards, 1))[..., None], torch.from_numpy(columns), decided, alone)
    np.testing.assert_allclose(ours[:, -1, 0], scaled, rtol=1e-5)
    count_returns(scale, torch.from_numpy(columns), decided, alone)
    np.testing.assert_allclose(scale.variance.item(), peer.ret_rms.var, rtol=1e-6)
    np.testing.assert_allclose(scale.mean.item(), peer.ret_rms.mean, rtol=1e-6)
    assert peer.epsilon == EPSILON and peer.clip_reward == 10.0


@pytest.mark.parametrize("normalize_observations", [False, True])
def test_the_scale_belongs_to_the_policy_alone(normalize_observations):
    keys = {"state_dim": 3, "hidden_size": 8, "normalize_observations": normalize_observations}
    gaussian = MLPGaussianConfig(action_dim=2, normalize_returns=True, reward_clip=3.0, **keys)
    categorical = MLPCategoricalConfig(num_actions=4, normalize_returns=True, **keys)
    for policy in (MLPGaussianPolicy(gaussian, "cpu"), MLPCategoricalPolicy(categorical, "cpu")):
        scales = [name for name in policy.model.state_dict() if "return_scale" in name]
        assert scales == ["return_scale.count", "return_scale.mean", "return_scale.variance"]
        assert len(normalizers_of(policy.model)) == int(normalize_observations), "states do not enter the scale"
    critic = MLPGaussianCritic(gaussian, "cpu")
    critic.start_from(MLPGaussianPolicy(gaussian, "cpu").model.state_dict())
    assert return_scale_of(critic.model) is None
    plain = MLPGaussianPolicy(MLPGaussianConfig(action_dim=2, **keys), "cpu")
    assert not [name for name in plain.model.state_dict() if "return" in name]
