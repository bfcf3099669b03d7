"""A policy that steers a frozen one by its noise: bounds, layout, densities, and what stays as it is."""

from typing import Any

import numpy as np
import pytest
import torch
from acting_models import MODELS, observe
from flow_vla_models import tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policy_rows import as_batch, uniforms_for

from embodyflow.policies.policy_registry import build_critic

SHARED, OWN = "SmolVLA that is steered", "π0 that is steered"
BOUND, ACTIONS, DIMS, PADDED = 2.0, 4, 3, 8
UNIFORMS = hnp.arrays(np.float32, (2, DIMS), elements=st.floats(0, 1, width=32, exclude_max=True))


@pytest.fixture(scope="module", params=[SHARED, OWN])
def policy(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param].make()


@pytest.fixture(scope="module")
def shared() -> Any:
    return MODELS[SHARED].make()


@settings(max_examples=50, deadline=None)
@given(uniforms=UNIFORMS, temperature=st.floats(0.1, 10))
def test_the_noise_stays_within_its_bound(shared: Any, uniforms: np.ndarray, temperature: float) -> None:
    with torch.inference_mode():
        numbers, _ = shared._decide(torch.full((2, 5), 10.0), uniforms, temperature)
    assert np.abs(numbers).max() <= 1
    assert shared.noise(torch.from_numpy(numbers)).abs().max() <= BOUND


def test_all_actions_share_the_noise_and_padding_has_none(shared: Any) -> None:
    noise = shared.noise(torch.tensor([[0.5, -1.0, 0.25]]))
    assert noise.shape == (1, ACTIONS, PADDED)
    assert noise[0].tolist() == [[1.0, -2.0, 0.5, *[0.0] * 5]] * ACTIONS


def test_each_action_may_have_noise_of_its_own() -> None:
    policy = MODELS[OWN].make()
    numbers = torch.arange(12.0) / 16
    noise = policy.noise(numbers[None])
    assert noise.shape == (1, ACTIONS, PADDED) and not noise[..., DIMS:].any()
    assert noise[0, :, :DIMS].tolist() == (BOUND * numbers).unflatten(0, (ACTIONS, DIMS)).tolist()


def test_equal_noise_gives_equal_actions_and_other_noise_others(policy: Any) -> None:
    seen = tensors(observe(policy, 3))
    numbers = 2 * torch.rand(3, policy.num_draws, generator=torch.Generator().manual_seed(0)) - 1
    with torch.inference_mode():
        first, same = (policy.base.follow(seen, policy.noise(numbers)) for _ in range(2))
        other = policy.base.follow(seen, policy.noise(-numbers))
    assert torch.equal(first, same) and first.shape == (3, ACTIONS, DIMS)
    assert ((first - other).abs().flatten(1).amax(1) > 1e-3).all()


def test_a_decision_follows_the_noise_that_it_records(policy: Any) -> None:
    observation = observe(policy, 8)
    decision = policy.act(observation, uniforms_for(policy, 8), 1.0)
    with torch.inference_mode():
        actions = policy.base.follow(tensors(observation), policy.noise(torch.from_numpy(decision.tokens)))
    np.testing.assert_array_equal(actions, decision.actions)


def test_greedy_decisions_are_at_first_those_of_the_frozen_policy(policy: Any) -> None:
    observation = observe(policy, 8)
    decision, alone = (each.act(observation, None, 1.0) for each in (policy, policy.base))
    assert not decision.tokens.any()
    np.testing.assert_array_equal(decision.actions, alone.actions)


def test_the_log_probs_of_a_whole_decision_sum_to_its_density(policy: Any) -> None:
    observation = observe(policy, 4)
    decision = policy.act(observation, uniforms_for(policy, 4), 1.0)
    state, numbers = torch.from_numpy(observation["state"]), torch.from_numpy(decision.tokens)
    density = policy._log_densities(state, numbers, 1.0).sum(-1)
    np.testing.assert_allclose(decision.log_probs.sum(-1), density.detach(), rtol=1e-4, atol=1e-3)
    log_probs, _ = policy.evaluate(as_batch(policy, observation, decision.tokens), 1.0)
    np.testing.assert_allclose(log_probs[:, 1].detach(), decision.log_probs, atol=2e-5)


def test_densities_train_the_noise_and_imitation_trains_the_frozen_policy(policy: Any) -> None:
    network, seen = policy.network, tensors(observe(policy, 2))
    actions, mask = torch.zeros(2, policy.horizon, DIMS), torch.ones(2, policy.horizon, dtype=torch.bool)
    uniforms = torch.full((2, policy.num_imitation_draws), 0.3)
    network.zero_grad()
    policy.sample(seen["state"], torch.zeros(2, policy.num_draws))[1].sum().backward()
    assert all(value.grad is not None for value in network.actor.parameters())
    assert all(value.grad is None for value in network.base.parameters())
    network.zero_grad()
    assert not policy.imitation_loss(seen, actions, mask, 0.0, uniforms).requires_grad
    network.set_imitating(True)
    policy.imitation_loss(seen, actions, mask, 0.0, uniforms).backward()
    network.set_imitating(False)
    assert any(value.grad is not None for value in network.base.parameters())
    assert all(value.grad is None for value in network.actor.parameters())
    assert not any(value.requires_grad for value in network.base.parameters())


def test_the_frozen_policy_imitates_actions_with_noise(policy: Any) -> None:
    seen, mask = tensors(observe(policy, 2)), torch.ones(2, policy.horizon, dtype=torch.bool)
    actions, own = torch.full((2, policy.horizon, DIMS), 0.25), policy.base.num_imitation_draws
    uniforms = torch.full((2, policy.num_imitation_draws), 0.3)
    uniforms[:, own:] = 0.8413447  # of one deviation
    with torch.no_grad():
        noised = policy.imitation_loss(seen, actions, mask, 32.0, uniforms)
        expected = policy.base.imitation_loss(seen, actions + 0.25, mask, 0.0, uniforms[:, :own])
        plain = policy.base.imitation_loss(seen, actions, mask, 0.0, uniforms[:, :own])
    assert float(noised) == pytest.approx(float(expected), rel=1e-4)
    assert float(noised) != pytest.approx(float(plain), rel=1e-2)


def test_critics_standardise_by_the_frozen_policys_statistics(shared: Any) -> None:
    states = torch.randn(20, 5, generator=torch.Generator().manual_seed(1)) * 3 + 7
    shared.set_normalization(states, torch.zeros(20, DIMS))
    critics: Any = build_critic(shared.config, "cpu")
    critics.start_from(shared.model.state_dict())
    own = critics.model.standardize(states)
    assert own.mean(0).abs().max() < 1e-5 and torch.allclose(own.std(0), torch.ones(5), atol=1e-5)
    assert critics.evaluate_actions(states, torch.zeros(20, DIMS)).shape == (shared.config.num_critics, 20)
