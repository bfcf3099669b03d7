"""TinyVLA with discrete actions: its distribution by hand, absent choices, and weights without it."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from acting_models import observe
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from embodyflow.policies.action_tokens import choose_tokens, evaluate_tokens
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import ChoiceHead, TinyVLA
from embodyflow.policies.embodied.tiny_vla.policy_tiny_vla import TinyVLAPolicy

SIZES = {"state_dim": 4, "action_dim": 2, "chunk_size": 3, "hidden_size": 16, "num_layers": 1}


def new_policy(*choices: int, **sizes: Any) -> TinyVLAPolicy:
    torch.manual_seed(0)
    return TinyVLAPolicy(TinyVLAConfig(**(SIZES | sizes), num_choices=choices), "cpu")


def flat(policy: TinyVLAPolicy) -> TinyVLAPolicy:
    """Make all choices of each dimension equally probable."""
    for parameter in policy.model.head.logits.parameters():
        torch.nn.init.zeros_(parameter)
    return policy


def test_tokens_are_choices_with_their_own_probabilities() -> None:
    policy = flat(new_policy(4, 2))
    uniforms = np.random.default_rng(0).random((6, 6), dtype=np.float32)
    decision = policy.act(observe(policy, 6), uniforms, 1.0)
    chosen = np.floor(uniforms.reshape(6, 3, 2) * [4, 2]).astype(int)
    np.testing.assert_array_equal(decision.tokens, chosen.reshape(6, 6))
    np.testing.assert_allclose(decision.log_probs, np.tile([-math.log(4), -math.log(2)], (6, 3)), rtol=1e-6)
    assert decision.actions.shape == (6, 3, 2) and decision.actions.dtype == np.float32
    np.testing.assert_array_equal(decision.actions.reshape(6, 6), decision.tokens)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=2), st.integers(0, 2**16), st.floats(0.05, 5))
def test_an_absent_choice_is_never_taken(choices: list[int], seed: int, temperature: float) -> None:
    policy = new_policy(*choices)
    uniforms = np.random.default_rng(seed).random((16, 6), dtype=np.float32)
    uniforms[0] = np.nextafter(np.float32(1), np.float32(0))
    for draws in (uniforms, None):
        decision = policy.act(observe(policy, 16), draws, temperature)
        assert (decision.actions < choices).all() and np.isfinite(decision.log_probs).all()


def test_entropy_and_gradients_see_present_choices_only() -> None:
    policy = flat(new_policy(5, 2))
    observation = {name: torch.from_numpy(each) for name, each in observe(policy, 3).items()}
    logits = policy.model(observation)
    tokens, _ = choose_tokens(logits, torch.full((3, 6), 0.9), 1.0)
    batch = {"loss_mask": torch.ones(3, 1, 6, dtype=torch.bool), "action_tokens": tokens.unsqueeze(1)}
    log_probs, entropy = evaluate_tokens(logits, batch, torch.ones(3, 1, dtype=torch.bool), 1.0)  # type: ignore[arg-type]
    expected = torch.tensor([math.log(5), math.log(2)]).repeat(3)
    torch.testing.assert_close(entropy, expected.expand(3, 1, 6))
    (log_probs + entropy).sum().backward()
    gradient = policy.model.head.logits.weight.grad.unflatten(0, (6, 5))
    assert not gradient[1::2, 2:].any() and gradient[1::2, :2].any() and gradient[0::2].any()


def test_imitation_targets_are_the_choices_themselves() -> None:
    policy = flat(new_policy(4, 2))
    seen = {name: torch.from_numpy(each) for name, each in observe(policy, 2).items()}
    actions = torch.tensor([[[3.0, 1.0]] * 3] * 2)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    loss = policy.imitation_loss(seen, actions, mask, sigma=9.0, uniforms=torch.zeros(0))
    assert loss.item() == pytest.approx(3 * (math.log(4) + math.log(2)), rel=1e-6)
    assert policy.processor.tokens(actions).tolist() == [[3, 1] * 3] * 2


def test_continuous_actions_have_the_parameters_of_before() -> None:
    model = TinyVLA(TinyVLAConfig(**SIZES))
    assert set(model.head.state_dict()) == {"coefficients.weight", "coefficients.bias", "basis"}
    assert isinstance(new_policy(3, 3).model.head, ChoiceHead)


def test_a_number_is_needed_for_each_dimension() -> None:
    with pytest.raises(ValidationError, match=r"num_choices=\[3\]: must be one number for each of action_dim=2"):
        TinyVLAConfig(**SIZES, num_choices=(3,))
