"""Requirements on the diffusion policy, beyond those on all policies that act."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from acting_models import observe
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_rows import as_batch, uniforms_for
from tensordict import TensorDict

from embodyflow.policies.base import NormalizationStatistics
from embodyflow.policies.embodied.diffusion.configuration_diffusion import DiffusionConfig
from embodyflow.policies.embodied.diffusion.policy_diffusion import DiffusionPolicy
from embodyflow.policies.embodied.diffusion.steps_diffusion import signal_shares
from embodyflow.policies.flow_sde import standard_normals

SIZES = {"state_dim": 3, "action_dim": 2, "chunk_size": 3, "hidden_size": 16, "num_layers": 1}
STEPS = {"num_noise_levels": 12, "num_steps": 4, "num_trained_steps": 2, "min_noise": 0.2, "min_log_prob_noise": 0.2}


def new_policy(**keys: Any) -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(DiffusionConfig(**(SIZES | STEPS | keys)), "cpu")


def demonstrations(num_rows: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return states, actions that follow from them, and a mask in which all count."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(num_rows, 3, generator=generator)
    actions = torch.stack([0.5 * states[:, :2], states[:, 1:], -states[:, :2]], dim=1)
    return {"state": states}, actions, torch.ones(num_rows, 3, dtype=torch.bool)


def imitation_loss(policy: DiffusionPolicy, seed: int) -> torch.Tensor:
    observation, actions, mask = demonstrations(64)
    draws = torch.rand(64, policy.num_imitation_draws, generator=torch.Generator().manual_seed(seed))
    return policy.imitation_loss(observation, actions, mask, 0.0, draws)


def rows_of(policy: DiffusionPolicy, num_rows: int, temperature: float = 1.0) -> TensorDict:
    observation = observe(policy, num_rows)
    return as_batch(policy, observation, policy.act(observation, uniforms_for(policy, num_rows), temperature).tokens)


def test_a_decision_is_recorded_as_its_chain_of_denoising_steps() -> None:
    policy = new_policy()
    policy.set_normalization(torch.randn(50, 3), 3 + 2 * torch.randn(50, 2))
    decision = policy.act(observe(policy, 5), uniforms_for(policy, 5), 1.6)
    assert (decision.tokens.dtype, decision.tokens.shape) == (np.float32, (5, 3 * 5 * 2))
    assert decision.log_probs.shape == (5, 3 * 2)
    chain = torch.from_numpy(decision.tokens).view(5, 3, 5, 2)
    noise = standard_normals(torch.from_numpy(uniforms_for(policy, 5))).view(5, 3, 5, 2)
    assert torch.equal(chain[:, :, 0], noise[:, :, 0]), "a chain begins with noise"
    scale = policy.model.scale
    np.testing.assert_array_equal(decision.actions, chain[:, :, -1] * scale.deviation + scale.mean)


def test_a_chain_replays_bit_identically_step_by_step() -> None:
    policy = new_policy()
    observation, uniforms = observe(policy, 4), uniforms_for(policy, 4)
    first, again = (policy.act(observation, uniforms, 0.7) for _ in range(2))
    for name in ("tokens", "log_probs", "actions"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    chain, normals = torch.from_numpy(first.tokens).view(4, 3, 5, 2), standard_normals(torch.from_numpy(uniforms))
    state, normals = torch.from_numpy(observation["state"]), normals.view(4, 3, 5, 2)
    with torch.inference_mode():
        for step, level in enumerate(policy.steps.levels):
            here, one = chain[:, :, step], slice(step, step + 1)
            velocity = policy.model.velocity(state, here, level)
            mean = policy.steps.means(here[:, :, None], velocity[:, :, None], one)[:, :, 0]
            drawn = policy.steps.deviations(one, here, 0.7) * normals[:, :, step + 1]
            assert torch.equal(mean + drawn, chain[:, :, step + 1]), step


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 6), st.floats(0, 1), st.floats(0.1, 1), st.floats(0.5, 2.0))
def test_the_log_prob_of_a_chain_is_the_sum_of_gaussian_log_densities(
    chunk_size: int, num_trained_steps: int, num_early: int, eta: float, min_noise: float, temperature: float
) -> None:
    num_steps, num_levels = num_trained_steps + num_early, 15
    keys = {"chunk_size": chunk_size, "num_steps": num_steps, "num_trained_steps": num_trained_steps, "eta": eta}
    noise = {"min_noise": min_noise, "min_log_prob_noise": min_noise}
    policy = new_policy(num_noise_levels=num_levels, **keys, **noise)
    observation = observe(policy, 3)
    decision = policy.act(observation, uniforms_for(policy, 3), temperature)
    chain = torch.from_numpy(decision.tokens).view(3, chunk_size, num_steps + 1, 2).double()
    state, shares = torch.from_numpy(observation["state"]), signal_shares(num_levels)
    expected = torch.zeros(3, dtype=torch.float64)
    ends = [*policy.steps.levels[1:], 0]
    for step in range(num_early, num_steps):
        start, end = shares[policy.steps.levels[step]], shares[ends[step]]
        here = chain[:, :, step]
        with torch.no_grad():
            velocity = policy.model.velocity(state, here.float(), policy.steps.levels[step]).double()
        action = math.sqrt(start) * here - math.sqrt(1 - start) * velocity
        predicted = math.sqrt(1 - start) * here + math.sqrt(start) * velocity
        variance = eta**2 * (1 - end) / (1 - start) * (1 - start / end)
        mean = math.sqrt(end) * action + math.sqrt(max(1 - end - variance, 0)) * predicted
        deviation = max(math.sqrt(variance), min_noise) * math.sqrt(temperature)
        expected += torch.distributions.Normal(mean, deviation).log_prob(chain[:, :, step + 1]).sum((1, 2))
    np.testing.assert_allclose(decision.log_probs.sum(1), expected, atol=1e-3)
    log_probs, _ = policy.evaluate(as_batch(policy, observation, decision.tokens), temperature)
    np.testing.assert_allclose(log_probs[:, 1].detach().sum(-1), expected, atol=1e-3)


def test_a_log_prob_belongs_to_one_step_of_one_action() -> None:
    policy = new_policy()
    batch = rows_of(policy, 2)
    before = policy.evaluate(batch, 1.0)[0][:, 1].unflatten(-1, (3, 2))
    chain = batch["action_tokens"].unflatten(-1, (3, 5, 2))
    chain[:, 1, 2, 4] += 0.1  # the end of the third action
    gap = (policy.evaluate(batch, 1.0)[0][:, 1].unflatten(-1, (3, 2)) - before).abs().amax(0)
    assert gap[2, 1] > 1e-3
    gap[2, 1] = 0
    assert gap.max() < 2e-5
    chain[:, 1, 0, 1] += 0.1  # a step that RL does not train
    assert torch.equal(policy.evaluate(batch, 1.0)[0][:, 1].unflatten(-1, (3, 2))[:, :2], before[:, :2])


def test_the_gradient_of_log_probs_matches_finite_differences() -> None:
    policy = new_policy()
    batch, late = rows_of(policy, 4), policy.model.late
    policy.evaluate(batch, 1.0)[0].sum().backward()
    start = torch.nn.utils.parameters_to_vector(late.parameters()).detach()
    gradient = torch.cat([each.grad.flatten() for each in late.parameters()])
    # A random direction alone is nearly orthogonal to the gradient.
    random = torch.randn(len(start), generator=torch.Generator().manual_seed(1))
    direction = gradient / gradient.norm() + random / random.norm()

    def moved(step: float) -> float:
        torch.nn.utils.vector_to_parameters(start + step * direction, late.parameters())
        return policy.evaluate(batch, 1.0)[0].detach().double().sum().item()

    slope = torch.dot(gradient, direction).item()
    assert slope > 1 and (moved(0.005) - moved(-0.005)) / 0.01 == pytest.approx(slope, rel=0.02)


def test_reinforcement_learning_trains_the_last_steps_and_imitation_all() -> None:
    policy = new_policy()
    policy.evaluate(rows_of(policy, 4), 1.0)[0].sum().backward()
    assert all(each.grad is None for each in policy.model.early.parameters())
    assert all(each.grad is not None and each.grad.any() for each in policy.model.late.parameters())
    policy.model.zero_grad()
    imitation_loss(policy, 0).backward()
    assert all(each.grad is not None and each.grad.any() for each in policy.model.parameters())


def test_each_denoiser_imitates_the_levels_of_its_steps() -> None:
    policy = new_policy()
    assert policy.steps.levels == [12, 9, 6, 3]  # the last two steps are trained
    observation, actions, mask = demonstrations(4)
    for level, name, other in ((6, "late", "early"), (7, "early", "late")):
        draws = torch.full((4, policy.num_imitation_draws), 0.3)
        draws[:, -1] = (level - 0.5) / 12
        policy.model.zero_grad()
        policy.imitation_loss(observation, actions, mask, 0.0, draws).backward()
        assert any(each.grad.any() for each in getattr(policy.model, name).parameters()), level
        assert not any(each.grad.any() for each in getattr(policy.model, other).parameters()), level


def test_one_denoiser_is_enough_where_all_steps_are_trained() -> None:
    policy = new_policy(num_trained_steps=4)
    assert policy.model.early is None and policy.num_tokens == 3 * 4
    assert {name.partition(".")[0] for name in policy.model.state_dict()} == {"standardize", "scale", "late"}


def test_the_imitation_loss_by_hand() -> None:
    policy = new_policy(num_trained_steps=4)
    for weight in (policy.model.late.leave.weight, policy.model.late.leave.bias):
        torch.nn.init.zeros_(weight)  # all velocities are 0
    observation, actions, mask = demonstrations(2)
    mask[1, 1:] = False
    draws = torch.full((2, policy.num_imitation_draws), 0.5)  # no noise; level 1 + 6 of 12
    loss = policy.imitation_loss(observation, actions, mask, 0.0, draws).item()
    # Without noise the velocity is -√(1 - ᾱ)·action.
    squares = actions[0].square().sum() + actions[1, 0].square().sum()
    assert loss == pytest.approx((1 - signal_shares(12)[7]) * squares.item(), rel=1e-5)


def test_cloning_lowers_the_loss_and_acts_as_demonstrated() -> None:
    policy = new_policy(hidden_size=32)
    observation, actions, _ = demonstrations(64)
    policy.set_normalization(observation["state"], actions[:, 0])
    optimizer, losses = torch.optim.Adam(policy.model.parameters(), lr=3e-3), []
    for step in range(200):
        loss = imitation_loss(policy, step)
        optimizer.zero_grad()
        (loss / actions.numel()).backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.25 * np.mean(losses[:20])
    seen = {"state": observation["state"].numpy()}
    greedy, sampled = (policy.act(seen, draws, 1.0).actions for draws in (None, uniforms_for(policy, 64)))
    errors = [np.sqrt(np.mean((each - actions.numpy()) ** 2)) for each in (greedy, sampled)]
    assert errors[0] < 0.2 * actions.std().item(), "a greedy decision is near the expert's"
    # The last step's noise is left over: 0.2 of a deviation of the demonstrated actions.
    assert errors[1] == pytest.approx(0.2 * policy.model.scale.deviation.mean().item(), rel=0.5)


def test_only_executed_actions_count() -> None:
    policy = new_policy()
    batch = rows_of(policy, 2)
    whole, _ = policy.evaluate(batch, 1.0)
    batch["loss_mask"][0, 1, 2:] = False  # the episode ended after the first of three actions
    cut, entropy = policy.evaluate(batch, 1.0)
    assert torch.equal(cut[0, 1, :2], whole[0, 1, :2]) and not cut[0, 1, 2:].any() and not entropy[0, 1, 2:].any()
    assert torch.equal(cut[1], whole[1])


def test_the_entropy_is_that_of_the_steps_in_every_state() -> None:
    policy = new_policy(eta=0.0)
    _, entropy = policy.evaluate(rows_of(policy, 3), 1.6)
    expected = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.2 * math.sqrt(1.6)))  # two dimensions
    torch.testing.assert_close(entropy[:, 1], torch.full((3, 6), expected))


def test_states_and_actions_are_standardised_by_demonstrations() -> None:
    policy, generator = new_policy(), torch.Generator().manual_seed(0)
    states, actions = (3 + 2 * torch.randn(500, size, generator=generator) for size in (3, 2))
    policy.set_normalization(states, actions)
    standard = policy.model.scale(actions)
    torch.testing.assert_close(standard.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(standard.std(0), torch.ones(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(policy.model.scale.actions(standard), actions)
    torch.testing.assert_close(policy.model.standardize(states).mean(0), torch.zeros(3), atol=0.02, rtol=0)
    policy.set_normalization(states[:1], actions[:1])  # one demonstration of one step
    torch.testing.assert_close(policy.model.scale.deviation, torch.full((2,), 0.01))


def test_the_statistics_of_a_data_set_take_the_place_of_those_of_demonstrations() -> None:
    policy = new_policy()
    numbers = [torch.arange(1, size + 1, dtype=torch.float64) * scale for size, scale in ((3, 1), (3, 2), (2, 3))]
    policy.load_normalization(NormalizationStatistics(10, *numbers, torch.zeros(2, dtype=torch.float64)))
    model = policy.model
    assert model.standardize.mean.tolist() == [1, 2, 3] and model.standardize.deviation.tolist() == [2, 4, 6]
    assert model.scale.mean.tolist() == [3, 6]
    torch.testing.assert_close(model.scale.deviation, torch.full((2,), 0.01))  # an action that never varies


def test_the_discount_of_a_denoising_step_by_hand() -> None:
    config = DiffusionConfig(**(SIZES | STEPS), denoising_discount=0.9)
    assert config.advantage_weights == pytest.approx((0.9, 1.0) * 3)
    longer = config.model_copy(update={"num_trained_steps": 4, "chunk_size": 1})
    assert longer.advantage_weights == pytest.approx((0.729, 0.81, 0.9, 1.0))
    for all_one in ({"denoising_discount": 1.0}, {"num_trained_steps": 1}):
        assert config.model_copy(update=all_one).advantage_weights is None
