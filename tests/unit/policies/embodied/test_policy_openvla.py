import math
from typing import Any

import numpy as np
import pytest
import torch
from openvla_models import SlowOpenVLA, new_config, new_policy, observe
from policy_rows import as_batch, uniforms_for

from embodyflow.policies.embodied.openvla.critic_openvla import OpenVLACritic
from embodyflow.policies.embodied.openvla.policy_openvla import pixels

KINDS = [
    {"decoding": "autoregressive"},
    {"decoding": "parallel", "chunk_size": 2},
    {"decoding": "parallel", "chunk_size": 2, "cameras": ("image", "wrist_image")},
]
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_logits_match_a_slow_model_in_numpy(kind: dict[str, Any]) -> None:
    policy = new_policy(**kind)
    observation = observe(policy, 4)
    decision = policy.act(observation, uniforms_for(policy, 4), 1.0)
    seen = {name: torch.from_numpy(values) for name, values in observation.items()}
    images = pixels(policy.images, policy.config, seen)
    with torch.no_grad():
        logits = policy.model(images, seen["instruction_ids"], torch.from_numpy(decision.tokens))
    weights = {name: value.numpy() for name, value in policy.model.state_dict().items()}
    slow = SlowOpenVLA(weights, policy.description.config)
    for row in range(4):
        words = [word for word in observation["instruction_ids"][row].tolist() if word]
        tokens, parallel = decision.tokens[row].tolist(), kind["decoding"] == "parallel"
        expected = slow.logits(images[row].numpy(), words, tokens, policy.num_tokens, parallel)
        assert expected.std() > 0.5
        np.testing.assert_allclose(logits[row], expected, atol=1e-4 * np.abs(expected).max())
        log_probs = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
        acted = log_probs[np.arange(policy.num_tokens), tokens]
        np.testing.assert_allclose(decision.log_probs[row], acted, atol=1e-4)


@each_kind
def test_entropy_is_at_most_that_of_256_even_bins(kind: dict[str, Any]) -> None:
    policy = new_policy(**kind)
    observation = observe(policy, 5)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    _, entropy = policy.evaluate(batch, temperature=1.6)
    assert ((entropy[:, 1] > 0) & (entropy[:, 1] <= math.log(256) + 1e-5)).all()


def test_padding_of_the_prompt_makes_no_difference() -> None:
    for kind in KINDS[:2]:
        short, long = (new_policy(**kind, max_prompt_tokens=length) for length in (30, 60))
        left, right = (policy.act(observe(policy, 3), None, 1.0) for policy in (short, long))
        assert np.array_equal(left.tokens, right.tokens)
        np.testing.assert_allclose(left.log_probs, right.log_probs, atol=1e-5)


@each_kind
def test_every_input_has_an_effect(kind: dict[str, Any]) -> None:
    policy = new_policy(**kind)
    observation = observe(policy, 1)
    before = policy.act(observation, None, 1.0).log_probs
    changes = {camera: 255 - observation[camera] for camera in policy.config.cameras}
    changes["instruction_ids"] = policy.encode_instruction("close the drawer")[None]
    for name, values in changes.items():
        after = policy.act({**observation, name: values}, None, 1.0).log_probs
        assert np.abs(after - before).max() > 1e-3, name


def test_a_token_depends_on_earlier_ones_only_without_parallel_decoding() -> None:
    for kind, follows in zip(KINDS[:2], (True, False), strict=True):
        policy = new_policy(**kind)
        observation, uniforms = observe(policy, 1), uniforms_for(policy, 1)
        first = policy.act(observation, uniforms, 1.0)
        uniforms[:, 0] = (uniforms[:, 0] + 0.5) % 1
        second = policy.act(observation, uniforms, 1.0)
        assert second.tokens[0, 0] != first.tokens[0, 0]
        assert np.array_equal(second.log_probs[:, 1:], first.log_probs[:, 1:]) != follows


@each_kind
def test_trained_weights_have_gradients_and_unused_ones_are_frozen(kind: dict[str, Any]) -> None:
    policy = new_policy(**kind)
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    policy.evaluate(batch, 1.0)[0].sum().backward()
    trained = {name: p.grad for name, p in policy.model.named_parameters() if p.requires_grad}
    assert [name for name, grad in trained.items() if grad is None or not grad.any()] == []
    frozen = {name.split(".")[2] for name, p in policy.model.named_parameters() if not p.requires_grad}
    assert frozen == {"blocks", "norm", "attn_pool"}
    used = {id(p) for block in policy.blocks for p in block.parameters()}
    assert all(id(p) not in used for p in policy.model.parameters() if not p.requires_grad)


@each_kind
def test_the_imitation_loss_is_the_negative_log_prob_of_expert_tokens(kind: dict[str, Any]) -> None:
    policy = new_policy(**kind)
    observation = observe(policy, 2)
    decision = policy.act(observation, uniforms_for(policy, 2), 1.0)
    decision.tokens[:] = np.minimum(decision.tokens, 254)  # 255 means the same action as 254
    log_probs, _ = policy.evaluate(as_batch(policy, observation, decision.tokens), 1.0)
    seen = {name: torch.from_numpy(values) for name, values in observation.items()}
    actions, size = torch.from_numpy(decision.actions), policy.config.chunk_size
    mask = torch.zeros(2, size, dtype=torch.bool)
    assert policy.imitation_loss(seen, actions, mask, sigma=0.0, uniforms=torch.zeros(0)).item() == 0
    mask[:, 0] = True
    loss = policy.imitation_loss(seen, actions, mask, sigma=0.0, uniforms=torch.zeros(0))
    first = log_probs[:, 1].unflatten(-1, (size, -1))[:, 0]
    assert loss.item() == pytest.approx(-first.sum().item(), rel=1e-5)
    smoothed = policy.imitation_loss(seen, actions, mask, sigma=4.0, uniforms=torch.zeros(0))
    assert smoothed.item() != pytest.approx(loss.item(), rel=1e-3)


def test_the_critic_starts_from_the_policy_at_zero_and_learns() -> None:
    policy = new_policy(**KINDS[1])
    critic = OpenVLACritic(new_config(**KINDS[1]), "cpu")
    critic.start_from(policy.model.state_dict())
    observation = observe(policy, 2)
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)
    values = critic.evaluate(batch)
    assert values.shape == (2, 3) and not values.any()
    ours, theirs = critic.model.state_dict(), policy.model.state_dict()
    shared = set(ours) & set(theirs)
    assert set(ours) - shared == {"value.weight", "value.bias"} and all(torch.equal(ours[n], theirs[n]) for n in shared)
    torch.nn.init.ones_(critic.model.value.weight)
    ((critic.evaluate(batch) - 1.0) ** 2).sum().backward()
    assert all(p.grad is not None for p in critic.model.parameters() if p.requires_grad)
    batch["loss_mask"].zero_()
    assert not critic.evaluate(batch).any()
