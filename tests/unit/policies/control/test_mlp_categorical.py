"""The categorical policy against numbers worked out by hand and torch.distributions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensordict import TensorDict
from torch.distributions import Categorical

from embodyflow.policies.control.mlp_categorical.configuration_mlp_categorical import MLPCategoricalConfig
from embodyflow.policies.control.mlp_categorical.policy_mlp_categorical import MLPCategoricalPolicy

CONFIG = MLPCategoricalConfig(state_dim=3, num_actions=4, hidden_size=8)


@pytest.fixture
def policy() -> MLPCategoricalPolicy:
    torch.manual_seed(0)
    return MLPCategoricalPolicy(CONFIG, "cpu")


def fix_probabilities(policy: MLPCategoricalPolicy, *probabilities: float) -> None:
    """Give the policy these probabilities in every state."""
    head = policy.model.get_submodule("logits")
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(probabilities).log() + 3.0)  # a constant changes nothing


def batch(tokens: list[list[int]], mask: list[list[bool]]) -> TensorDict:
    draw = np.random.default_rng(0).normal(size=(len(tokens), len(tokens[0]), 3)).astype(np.float32)
    columns = {
        "state": torch.from_numpy(draw),
        "action_tokens": torch.tensor(tokens).unsqueeze(-1),
        "loss_mask": torch.tensor(mask).unsqueeze(-1),
    }
    return TensorDict(columns, batch_size=[len(tokens)])


def test_log_probs_and_entropy_are_those_worked_by_hand(policy: MLPCategoricalPolicy) -> None:
    fix_probabilities(policy, 0.5, 0.25, 0.125, 0.125)
    log_probs, entropy = policy.evaluate(batch([[0, 1], [3, 2]], [[True, True], [True, False]]), 1.0)
    expected = torch.tensor([[1.0, 2.0], [3.0, 0.0]]) * -math.log(2)
    torch.testing.assert_close(log_probs[..., 0], expected)
    # 1/2 · 1 + 1/4 · 2 + 2 · 1/8 · 3 = 7/4 bits
    torch.testing.assert_close(entropy[..., 0], torch.tensor([[1.75, 1.75], [1.75, 0.0]]) * math.log(2))


def test_a_temperature_of_a_half_squares_the_probabilities(policy: MLPCategoricalPolicy) -> None:
    fix_probabilities(policy, 0.5, 0.25, 0.125, 0.125)
    log_probs, _ = policy.evaluate(batch([[0, 1]], [[True, True]]), 0.5)
    total = 1 / 4 + 1 / 16 + 2 / 64
    expected = torch.tensor([[1 / 4 / total, 1 / 16 / total]]).log()
    torch.testing.assert_close(log_probs[..., 0], expected)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_log_probs_and_entropy_match_the_categorical_distribution(
    policy: MLPCategoricalPolicy, temperature: float
) -> None:
    rows = batch([[0, 3], [1, 2]], [[True, True], [True, True]])
    log_probs, entropy = policy.evaluate(rows, temperature)
    peer = Categorical(logits=policy.model(rows["state"]) / temperature)
    torch.testing.assert_close(log_probs[..., 0], peer.log_prob(rows["action_tokens"][..., 0]))
    torch.testing.assert_close(entropy[..., 0], peer.entropy())


def test_samples_have_the_policys_frequencies(policy: MLPCategoricalPolicy) -> None:
    fix_probabilities(policy, 0.5, 0.25, 0.125, 0.125)
    uniforms = np.random.default_rng(0).random((20_000, 1))
    decision = policy.act({"state": np.zeros((20_000, 3), np.float32)}, uniforms, 1.0)
    assert np.bincount(decision.tokens[:, 0]) / 20_000 == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.01)
    assert np.array_equal(decision.actions[:, 0], decision.tokens) and decision.actions.shape == (20_000, 1, 1)


@pytest.mark.parametrize(("uniform", "action"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.76, 2), (1 - 1e-16, 3)])
def test_a_uniform_chooses_by_the_cumulative_probabilities(
    policy: MLPCategoricalPolicy, uniform: float, action: int
) -> None:
    fix_probabilities(policy, 0.5, 0.25, 0.125, 0.125)
    decision = policy.act({"state": np.zeros((1, 3), np.float32)}, np.array([[uniform]]), 1.0)
    assert decision.tokens.tolist() == [[action]]


def test_greedy_is_the_most_probable_action(policy: MLPCategoricalPolicy) -> None:
    fix_probabilities(policy, 0.1, 0.2, 0.4, 0.3)
    decision = policy.act({"state": np.ones((2, 3), np.float32)}, None, 1.0)
    assert decision.tokens.tolist() == [[2], [2]]
    assert decision.log_probs == pytest.approx(np.full((2, 1), math.log(0.4)))


def test_all_actions_are_about_equally_likely_at_the_start(policy: MLPCategoricalPolicy) -> None:
    _, entropy = policy.evaluate(batch([[0, 0]], [[True, True]]), 1.0)
    assert entropy.flatten().tolist() == pytest.approx([math.log(4)] * 2, abs=1e-3)


def test_an_export_states_its_sizes_and_weights(policy: MLPCategoricalPolicy, tmp_path: Path) -> None:
    policy.export({name: value.numpy() for name, value in policy.model.state_dict().items()}, tmp_path)
    assert MLPCategoricalConfig(**json.loads((tmp_path / "config.json").read_text())) == CONFIG
    assert load_file(tmp_path / "model.safetensors")["logits.weight"].shape == (4, 8)
