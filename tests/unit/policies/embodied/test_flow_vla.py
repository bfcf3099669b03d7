"""Requirements on every policy that denoises by flow matching, beyond those on all policies."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flow_vla_models import golden_imitation, golden_uniforms, observe, tensors
from policy_rows import as_batch, uniforms_for

from embodyflow.policies.base import NormalizationStatistics

STATED = (("state", 5), ("action", 3))
KINDS = [{}, {"train_expert_only": True, "cameras": ("image",), "chunk_size": 1}]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["all trained", "the expert trained"])


def test_actions_match_lerobots(models: ModuleType) -> None:
    policy = models.new_policy(noise_level=1e-6)
    decision = policy.act(observe(policy, 2), golden_uniforms().reshape(2, -1), 1.0)
    np.testing.assert_allclose(decision.actions, models.GOLDEN, atol=models.TOLERANCE)


def test_the_imitation_loss_matches_lerobots(models: ModuleType) -> None:
    policy = models.new_policy()
    actions, mask, uniforms = golden_imitation(policy)
    assert uniforms.shape[1] == policy.num_imitation_draws
    loss = policy.imitation_loss(tensors(observe(policy, 2)), actions, mask, 0.0, uniforms)
    assert loss.item() / actions.numel() == pytest.approx(models.GOLDEN_LOSS, rel=1e-4)
    mask[:, 1:] = False
    first = policy.imitation_loss(tensors(observe(policy, 2)), actions, mask, 0.0, uniforms)
    assert 0 < first.item() < loss.item()
    assert policy.imitation_loss(tensors(observe(policy, 2)), actions, mask & False, 0.0, uniforms).item() == 0


@each_kind
def test_a_decision_is_recorded_as_its_chain_of_denoising_steps(models: ModuleType, kind: dict[str, Any]) -> None:
    policy = models.new_policy(**kind)
    observation = observe(policy, 5)
    size, steps = policy.config.chunk_size, policy.config.num_steps
    decision = policy.act(observation, uniforms_for(policy, 5), temperature=1.6)
    assert (decision.tokens.dtype, decision.tokens.shape) == (np.float32, (5, size * (steps + 1) * 8))
    assert decision.log_probs.shape == (5, size * steps)
    _, entropy = policy.evaluate(as_batch(policy, observation, decision.tokens), temperature=1.6)
    # The first step's deviation is a, whatever the number of steps; here there are three dimensions.
    first = 3 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.5 * math.sqrt(1.6)))
    torch.testing.assert_close(entropy[:, 1, ::steps], torch.full((5, size), first))


def test_a_log_prob_belongs_to_one_step_of_one_action_without_padding(models: ModuleType) -> None:
    policy = models.new_policy()
    observation = observe(policy, 2)
    decision = policy.act(observation, uniforms_for(policy, 2), 1.0)
    before = policy.evaluate(as_batch(policy, observation, decision.tokens), 1.0)[0][:, 1].unflatten(-1, (4, 3))
    for dimension, changed in ((1, True), (5, False)):
        chain = decision.tokens.reshape(2, 4, 4, 8).copy()
        chain[:, 2, 3, dimension] += 0.1  # the end of the third action
        after = policy.evaluate(as_batch(policy, observation, chain.reshape(2, -1)), 1.0)[0][:, 1].unflatten(-1, (4, 3))
        gap = (after - before).abs().amax(0)
        assert (gap[2, 2] > 1e-3) == changed
        gap[2, 2] = 0
        assert gap.max() < 2e-5


def test_padding_of_the_prompt_makes_no_difference(models: ModuleType) -> None:
    short, long = (models.new_policy(max_prompt_tokens=length) for length in models.LENGTHS)
    left, right = (policy.act(observe(policy, 3), None, 1.0) for policy in (short, long))
    np.testing.assert_allclose(left.actions, right.actions, atol=1e-5)


def test_every_input_has_an_effect(models: ModuleType) -> None:
    policy = models.new_policy()
    observation, uniforms = observe(policy, 1), uniforms_for(policy, 1)
    before = policy.act(observation, uniforms, 1.0).actions
    changes = {camera: 255 - observation[camera] for camera in policy.config.cameras}
    changes["state"] = observation["state"] + 1
    changes["instruction_ids"] = policy.encode_instruction("close it")[None]
    for name, values in changes.items():
        after = policy.act({**observation, name: values}, uniforms, 1.0).actions
        assert np.abs(after - before).max() > 1e-3, name


@each_kind
def test_trained_weights_have_gradients_and_unused_ones_are_frozen(models: ModuleType, kind: dict[str, Any]) -> None:
    policy = models.new_policy(**kind)
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, uniforms_for(policy, 2), 1.0).tokens)
    policy.evaluate(batch, 1.0)[0].sum().backward()
    trained = {name: p.grad for name, p in policy.model.named_parameters() if p.requires_grad}
    assert [name for name, grad in trained.items() if grad is None or not grad.any()] == []
    frozen = {name for name, p in policy.model.named_parameters() if not p.requires_grad}
    if policy.config.train_expert_only:
        assert frozen == {name for name, _ in policy.model.named_parameters() if models.VLM in name}
    else:
        assert frozen == {name for name, _ in policy.model.named_parameters() if name.startswith(models.unused())}


def test_states_and_actions_are_standardised_by_demonstrations(models: ModuleType) -> None:
    policy = models.random_policy()
    rng = torch.Generator().manual_seed(0)
    states, actions = (3 + 2 * torch.randn(500, size, generator=rng) for size in (5, 3))
    policy.set_normalization(states, actions)
    found = policy.model.statistics
    standard = found.standardise("state", states, 8)
    assert standard.shape == (500, 8) and not standard[:, 5:].any()
    first, second = models.LAYOUT.statistics.of_samples(standard[:, :5])
    torch.testing.assert_close(first, torch.full((5,), found.neutral[0]).to(first), atol=1e-4, rtol=0)
    torch.testing.assert_close(second, torch.ones(5).to(second), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.actions(found.standardise("action", actions, 8)), actions)
    policy.set_normalization(states[:1], actions[:1])  # one demonstration of one step
    torch.testing.assert_close(found.standardise("state", states[:1], 5), torch.zeros(1, 5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.standardise("state", states[:1] + 0.01, 5), torch.ones(1, 5), atol=1e-3, rtol=0)


def test_the_statistics_of_a_data_set_take_the_place_of_those_of_demonstrations(models: ModuleType) -> None:
    policy = models.random_policy()
    numbers = [torch.arange(1, size + 1, dtype=torch.float64) * scale for size, scale in ((5, 1), (5, 2), (3, 3))]
    first, second = models.LAYOUT.statistics.kinds
    loaded = dict(zip((f"state_{first}", f"state_{second}", f"action_{first}"), numbers, strict=True))
    moments = {f"{name}_{kind}": torch.zeros(size) for name, size in STATED for kind in ("mean", "std")}
    constant = {f"action_{second}": {"std": torch.zeros(3), "q99": numbers[2]}[second]}
    policy.load_normalization(NormalizationStatistics(10, **(moments | loaded | constant)))
    found = policy.model.statistics
    assert found.get_buffer(f"state_{first}").tolist() == [1, 2, 3, 4, 5]
    assert found.get_buffer(f"state_{second}").tolist() == [2, 4, 6, 8, 10]
    # The dimensions of the action never vary.
    torch.testing.assert_close(found.actions(torch.zeros(8)), numbers[2].float())
    torch.testing.assert_close(found.actions(torch.ones(8)), numbers[2].float() + 0.01)


def test_the_imitation_loss_falls_in_training(models: ModuleType) -> None:
    policy = models.new_policy(chunk_size=2, cameras=("image",))
    observation, rng = tensors(observe(policy, 8)), torch.Generator().manual_seed(0)
    actions = 0.2 * torch.randn(8, 2, 3, generator=rng) + observation["state"][:, None, :3]
    policy.set_normalization(observation["state"], actions[:, 0])
    optimizer, losses = torch.optim.Adam(policy.model.parameters(), lr=3e-3), []
    for _ in range(60):
        uniforms = torch.rand(8, policy.num_imitation_draws, generator=rng)
        loss = policy.imitation_loss(observation, actions, torch.ones(8, 2, dtype=torch.bool), 0.0, uniforms)
        optimizer.zero_grad()
        (loss / actions.numel()).backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def test_the_critic_starts_from_the_policy_at_zero_and_learns(models: ModuleType) -> None:
    policy = models.new_policy()
    critic = models.new_critic()
    critic.start_from(policy.model.state_dict())
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    values = critic.evaluate(batch)
    assert values.shape == (2, 3) and not values.any()
    ours, theirs = critic.model.state_dict(), policy.model.state_dict()
    shared = set(ours) & set(theirs)
    assert {name.split(".")[0] for name in set(ours) - shared} == {"value"}
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    torch.nn.init.ones_(critic.model.value[-1].weight)
    ((critic.evaluate(batch) - 1.0) ** 2).sum().backward()
    assert all(p.grad is not None for p in critic.model.parameters() if p.requires_grad)
    batch["loss_mask"].zero_()
    assert not critic.evaluate(batch).any()
