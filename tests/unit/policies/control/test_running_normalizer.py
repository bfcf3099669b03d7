"""Running statistics of states against NumPy's over all rows, and against VecNormalize of Stable-Baselines3."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError
from stable_baselines3.common.running_mean_std import RunningMeanStd

from embodyflow.policies.base import NormalizationStatistics
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.critic_mlp_gaussian import MLPGaussianCritic
from embodyflow.policies.control.mlp_gaussian.policy_mlp_gaussian import MLPGaussianPolicy
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy
from embodyflow.policies.running_statistics.running_normalizer import EPSILON, RunningNormalizer, count_states


def alone(tensor):
    return tensor.clone()


def test_three_states_by_hand():
    normalizer = RunningNormalizer(1, 10.0)
    normalizer.merge(torch.tensor([[1.0], [3.0]]), alone)
    normalizer.merge(torch.tensor([[8.0]]), alone)
    assert (normalizer.count.item(), normalizer.mean.item()) == (3, 4)
    assert normalizer.variance.item() == pytest.approx((9 + 1 + 16) / 3)
    assert normalizer(torch.tensor([[7.0]])).item() == pytest.approx(3 / (26 / 3) ** 0.5)
    assert normalizer(torch.tensor([[1e6], [-1e6]])).flatten().tolist() == [10, -10]


@settings(deadline=None, max_examples=50)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-1e3, 1e3, width=32)),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_parts_give_the_statistics_of_the_whole(states, cuts):
    normalizer = RunningNormalizer(3, 10.0)
    for part in np.split(states, sorted(min(cut, len(states)) for cut in cuts)):
        normalizer.merge(torch.from_numpy(part), alone)
    assert normalizer.count.item() == len(states)
    np.testing.assert_allclose(normalizer.mean, states.mean(0, dtype=np.float64), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(normalizer.variance, states.astype(np.float64).var(0), rtol=1e-9, atol=1e-7)


def test_a_small_variance_far_from_zero_survives():
    states = 1e6 + np.random.default_rng(0).standard_normal((1000, 1))
    normalizer = RunningNormalizer(1, 10.0)
    for part in np.split(states, 10):
        normalizer.merge(torch.from_numpy(part), alone)
    assert normalizer.variance.item() == pytest.approx(states.var(), rel=1e-6)


def test_statistics_are_those_of_stable_baselines3():
    draw = np.random.default_rng(1)
    normalizer, peer = RunningNormalizer(4, 10.0), RunningMeanStd(epsilon=0.0, shape=(4,))
    peer.count = 1e-12  # it divides by the count before its first update
    for size in (5, 1, 40):
        states = draw.normal(3.0, 2.0, (size, 4))
        normalizer.merge(torch.from_numpy(states), alone)
        peer.update(states)
    np.testing.assert_allclose(normalizer.mean, peer.mean, rtol=1e-9)
    np.testing.assert_allclose(normalizer.variance, peer.var, rtol=1e-9)
    states = draw.normal(3.0, 2.0, (3, 4))
    theirs = np.clip((states - peer.mean) / np.sqrt(peer.var + EPSILON), -10, 10)
    np.testing.assert_allclose(normalizer(torch.from_numpy(states)), theirs, rtol=1e-8)


def test_only_decisions_count():
    model, states = RunningNormalizer(1, 10.0), torch.tensor([[[2.0], [9.0]], [[4.0], [6.0]]])
    count_states(model, states, torch.tensor([[True, False], [True, True]]), alone)
    assert (model.count.item(), model.mean.item()) == (3, 4)
    before = copy.deepcopy(model.state_dict())
    count_states(model, states, torch.zeros(2, 2, dtype=torch.bool), alone)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_state_that_is_no_number_is_refused_and_counts_nothing(bad):
    normalizer = RunningNormalizer(2, 10.0)
    with pytest.raises(FloatingPointError, match="state: a feature is NaN or inf"):
        normalizer.merge(torch.tensor([[1.0, bad]]), alone)
    assert normalizer.count.item() == 0 and normalizer.mean.tolist() == [0, 0]


def test_acting_changes_no_statistics_and_sees_normalised_states():
    torch.manual_seed(0)
    config = MLPGaussianConfig(state_dim=3, action_dim=2, hidden_size=8, normalize_observations=True)
    policy, plain = (
        MLPGaussianPolicy(config, "cpu"),
        MLPGaussianPolicy(MLPGaussianConfig(state_dim=3, action_dim=2, hidden_size=8), "cpu"),
    )
    states = np.random.default_rng(0).normal(50.0, 5.0, (64, 3)).astype(np.float32)
    policy.model.normalize.merge(torch.from_numpy(states), alone)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    plain.model.load_state_dict({name: v for name, v in before.items() if not name.startswith("normalize.")})
    acted = policy.act({"state": states}, None, 1.0)
    expected = ((states - states.mean(0, dtype=np.float64)) / states.std(0, dtype=np.float64)).astype(np.float32)
    np.testing.assert_allclose(acted.actions, plain.act({"state": expected}, None, 1.0).actions, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


def test_a_critic_starts_with_the_policys_statistics_alone():
    config = MLPGaussianConfig(state_dim=3, action_dim=2, hidden_size=8, normalize_observations=True)
    policy, critic = MLPGaussianPolicy(config, "cpu"), MLPGaussianCritic(config, "cpu")
    policy.model.normalize.merge(torch.randn(9, 3), alone)
    weights = critic.model.blocks[0][0].weight.clone()
    critic.start_from(policy.model.state_dict())
    assert torch.equal(critic.model.normalize.mean, policy.model.normalize.mean)
    assert critic.model.normalize.count.item() == 9 and torch.equal(critic.model.blocks[0][0].weight, weights)


def test_running_statistics_of_tiny_vla_go_on_from_the_demonstrations():
    config = TinyVLAConfig(state_dim=2, action_dim=2, hidden_size=8, normalize_observations=True)
    policy, states = TinyVLAPolicy(config, "cpu"), torch.tensor([[1.0, 5.0], [3.0, 9.0]])
    policy.set_normalization(states, torch.zeros(2, 2))
    normalizer = policy.model.embed.normalize
    assert (normalizer.count.item(), normalizer.mean.tolist(), normalizer.variance.tolist()) == (2, [2, 7], [1, 4])
    policy.set_normalization(states + 1, torch.zeros(2, 2))
    assert (normalizer.count.item(), normalizer.mean.tolist()) == (2, [3, 8])
    of_actions = torch.zeros(2, dtype=torch.float64)
    mean, std = torch.tensor([4.0, 6.0]), torch.tensor([1.0, 3.0])
    policy.load_normalization(NormalizationStatistics(50, mean, std, of_actions, of_actions))
    assert (normalizer.count.item(), normalizer.mean.tolist(), normalizer.variance.tolist()) == (50, [4, 6], [1, 9])


def test_without_normalisation_no_weight_is_added():
    names = MLPGaussianPolicy(MLPGaussianConfig(state_dim=3, action_dim=2), "cpu").model.state_dict()
    assert not [name for name in names if "normalize" in name]
    assert not [name for name in TinyVLA(TinyVLAConfig()).state_dict() if "normalize" in name]


def test_a_policy_of_images_alone_has_nothing_to_normalise():
    with pytest.raises(ValidationError, match="normalize_observations=true: must be false with state_dim=0"):
        TinyVLAConfig(state_dim=0, image_size=16, normalize_observations=True)
