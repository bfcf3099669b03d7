"""OpenVLA-OFT with a regression head: its numbers, published files, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from acting_models import assert_weights_refused, observe
from openvla_models import SlowOpenVLA, gelu, new_l1_policy
from policy_rows import as_batch, uniforms_for
from safetensors.torch import save_file

from embodyflow.errors import ConfigError
from embodyflow.policies.base import NormalizationStatistics
from embodyflow.policies.embodied.openvla.checkpoint_openvla import check_checkpoint as check_tokens
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.policy_openvla import pixels
from embodyflow.policies.embodied.openvla_l1.checkpoint_openvla_l1 import check_checkpoint
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config
from embodyflow.policies.embodied.openvla_l1.policy_openvla_l1 import OpenVLAL1Policy
from embodyflow.policies.laplace import standard_samples
from embodyflow.policies.pretrained.weights_match import check_weights_match

Array = np.ndarray
ACTIONS = {"q01": [-0.5, 0.0, 0.0], "q99": [0.5, 0.2, 1.0], "mask": [True, True, False]}
STATES = {"q01": [-2.0, -1.0, 0.0, 0.0, 3.0], "q99": [2.0, 3.0, 1.0, 0.5, 3.0], "mask": [True] * 3 + [False, True]}
LOW, HIGH = [-2.0, -1.0, 0.0, -1.0, 3.0], [2.0, 3.0, 1.0, 1.0, 3.0]


class SlowL1(SlowOpenVLA):
    """Computes the medians of one row in float64, from the formulas of the paper's code."""

    def medians(self, images: Array, words: list[int], state: Array, chunk_size: int, action_dim: int) -> Array:
        embedding = self.weights["language_model.model.embed_tokens.weight"]
        patches = [self.project(self.see(image)) for image in images]
        low, high = self.weights["state_low"], self.weights["state_high"]
        scaled = np.clip(2 * (state - low) / np.where(high > low, high - low, 1) - 1, -1, 1)[None]
        seen = self.linear("proprio_projector.fc2", gelu(self.linear("proprio_projector.fc1", scaled)))
        blanks = np.zeros((chunk_size * action_dim, embedding.shape[1]))
        sequence = [embedding[[1]], *patches, seen, embedding[words], blanks, embedding[[2]]]
        hidden = self.read(np.concatenate(sequence), causal=False)[-len(blanks) - 2 : -2]
        return self.head(hidden.reshape(chunk_size, -1))

    def head(self, hidden: Array) -> Array:
        head = "action_head.model."
        hidden = np.maximum(self.linear(f"{head}fc1", self.norm(f"{head}layer_norm1", hidden)), 0)
        for number in range(2):
            block = f"{head}mlp_resnet_blocks.{number}.ffn."
            hidden = hidden + np.maximum(self.linear(f"{block}1", self.norm(f"{block}0", hidden)), 0)
        return self.linear(f"{head}fc2", self.norm(f"{head}layer_norm2", hidden))

    def norm(self, name: str, hidden: Array) -> Array:
        """Normalise with the epsilon of torch, which the head has; the towers have another."""
        centred = hidden - hidden.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def write_published(folder: Path, policy: OpenVLAL1Policy) -> OpenVLAL1Config:
    """Write the files of a published checkpoint: the model in safetensors, head and projector by torch."""
    state = policy.model.state_dict()
    of_model = {
        name: value
        for name, value in state.items()
        if name.split(".")[0] in ("vision_backbone", "projector", "language_model")
    }
    save_file({name: value.contiguous() for name, value in of_model.items()}, folder / "model.safetensors")
    for part in ("action_head", "proprio_projector"):
        own = {
            f"module.{name.removeprefix(f'{part}.')}": value for name, value in state.items() if name.startswith(part)
        }
        torch.save(own, folder / f"{part}--150000_checkpoint.pt")
    statistics = {"libero_object_no_noops": {"action": ACTIONS, "proprio": STATES}}
    (folder / "config.json").write_text(json.dumps({**policy.description.config, "norm_stats": {}}))
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    policy.tokenizer.save_pretrained(folder)
    keys = {"scratch": None, "tokenizer": None, "path": str(folder), "unnorm_key": "libero_object"}
    return OpenVLAL1Config.model_validate(policy.config.model_dump() | keys | {"gripper": "binary_inverted"})


def test_medians_match_a_slow_model_in_numpy() -> None:
    policy = new_l1_policy()
    policy.set_normalization(torch.linspace(-1.5, 1.5, 50).unsqueeze(1) * torch.arange(1.0, 6.0), torch.zeros(50, 3))
    observation = observe(policy, 3)
    decision = policy.act(observation, None, 1.0)
    images = pixels(
        policy.images, policy.config, {name: torch.from_numpy(values) for name, values in observation.items()}
    )
    slow = SlowL1({name: value.numpy() for name, value in policy.model.state_dict().items()}, policy.description.config)
    for row in range(3):
        words = [word for word in observation["instruction_ids"][row].tolist() if word]
        expected = slow.medians(images[row].numpy(), words, observation["state"][row], 2, 3)
        assert expected.std() > 0.05
        np.testing.assert_allclose(decision.actions[row], expected, atol=1e-4 * np.abs(expected).max())


def test_decisions_are_laplace_samples_around_the_medians() -> None:
    policy = new_l1_policy()
    observation, uniforms = observe(policy, 4), uniforms_for(policy, 4)
    greedy, drawn = policy.act(observation, None, 1.0), policy.act(observation, uniforms, 1.5)
    distances = (drawn.tokens - greedy.tokens) / (0.2 * 1.5)
    np.testing.assert_allclose(distances, standard_samples(torch.from_numpy(uniforms)), atol=1e-4)
    np.testing.assert_allclose(drawn.log_probs, -np.abs(distances) - np.log(2 * 0.2 * 1.5), atol=1e-4)
    _, entropy = policy.evaluate(as_batch(policy, observation, drawn.tokens), 1.5)
    np.testing.assert_allclose(entropy[:, 1].detach(), 1 + np.log(2 * 0.2 * 1.5), rtol=1e-5)


def test_a_published_folder_acts_by_its_weights_and_statistics(tmp_path: Path) -> None:
    source = new_l1_policy()
    config = write_published(tmp_path, source)
    check_checkpoint(config, str(tmp_path))
    check_weights_match(config)
    loaded = OpenVLAL1Policy(config, "cpu")
    ours, theirs = loaded.model.state_dict(), source.model.state_dict()
    own = {"state_low", "state_high"}
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours.keys() - own)
    assert ours["state_low"].tolist() == LOW and ours["state_high"].tolist() == HIGH
    decision = loaded.act(observe(loaded, 3), None, 1.0)
    first = decision.tokens.reshape(3, 2, 3)[..., 0]
    np.testing.assert_allclose(decision.actions[..., 0], first * 0.5, rtol=1e-5)
    assert set(np.unique(decision.actions[..., 2])) <= {-1.0, 1.0}
    loaded.set_normalization(torch.randn(20, 5), torch.zeros(20, 3))
    assert loaded.model.state_dict()["state_low"].tolist() == LOW, "the checkpoint's statistics stay"


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    config = write_published(tmp_path, new_l1_policy())
    [file] = tmp_path.glob("action_head--*.pt")
    state = torch.load(file)
    torch.save({name: torch.zeros(7) if name.endswith("fc2.bias") else value for name, value in state.items()}, file)
    assert_weights_refused(config, r"action_head--\S+.pt has action_head.model.fc2.bias of shape \[7\]")


@pytest.mark.parametrize("published", [False, True])
def test_an_export_loads_with_scale_and_statistics(tmp_path: Path, published: bool) -> None:
    policy = new_l1_policy()
    if published:
        (tmp_path / "source").mkdir()
        policy = OpenVLAL1Policy(write_published(tmp_path / "source", policy), "cpu")
    else:
        policy.set_normalization(torch.randn(100, 5), torch.zeros(100, 3))
    policy.model.log_scale.data += torch.tensor([0.1, 0.2, 0.3])
    weights = {name: value.numpy() for name, value in policy.model.state_dict().items()}
    policy.export(weights, folder := tmp_path / "policy")
    keys = {"scratch": None, "tokenizer": None, "path": str(folder)}
    config = OpenVLAL1Config.model_validate(policy.config.model_dump() | keys)
    check_checkpoint(config, str(folder))
    for name, value in OpenVLAL1Policy(config, "cpu").model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name])


def test_statistics_of_a_data_set_scale_the_states_of_random_weights() -> None:
    policy = new_l1_policy()
    low, high = torch.arange(5.0).double(), torch.arange(5.0).double() + 2
    zeros, ones = torch.zeros(5), torch.ones(5)
    policy.load_normalization(NormalizationStatistics(9, zeros, ones, zeros[:3], ones[:3], low, high))
    assert policy.model.state_low.tolist() == low.tolist() and policy.model.state_high.tolist() == high.tolist()


def test_imitation_minimises_the_absolute_error_and_leaves_the_scale() -> None:
    policy = new_l1_policy()
    seen = {name: torch.from_numpy(values) for name, values in observe(policy, 2).items()}
    greedy = torch.from_numpy(policy.act(observe(policy, 2), None, 1.0).actions)
    targets = (greedy + 0.25).clamp(-1, 1)
    mask = torch.tensor([[True, False], [True, True]])
    loss = policy.imitation_loss(seen, targets, mask, sigma=4.0, uniforms=torch.zeros(0))
    assert loss.item() == pytest.approx(((targets - greedy).abs() * mask[..., None]).sum().item(), rel=1e-4)
    loss.backward()
    assert not policy.model.log_scale.grad.any() and policy.model.action_head.model.fc2.weight.grad.any()


NO_STATES = {"libero_object": {"action": ACTIONS}}
REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "no head": (
        lambda folder: (folder / "action_head--150000_checkpoint.pt").unlink(),
        {},
        "has no regression head .*; policy=openvla_oft reads",
    ),
    "no projector": (
        lambda folder: (folder / "proprio_projector--150000_checkpoint.pt").unlink(),
        {},
        "policy.state_dim=5: must be 0: .* does not read the state",
    ),
    "a projector that is not used": (
        lambda folder: None,
        {"state_dim": 0},
        "policy.state_dim=0: must be the number of",
    ),
    "another state": (lambda folder: None, {"state_dim": 7}, "policy.state_dim=7: .* libero_object_no_noops have 5"),
    "FiLM": (lambda folder: (folder / "vision_backbone--150000_checkpoint.pt").touch(), {}, "FiLM"),
    "no statistics of states": (
        lambda folder: (folder / "dataset_statistics.json").write_text(
            json.dumps({"libero_object": {"action": ACTIONS}})
        ),
        {},
        "policy.state_dim=5: the checkpoint has no quantiles of the states of libero_object",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    spoil, keys, message = REFUSED[case]
    config = write_published(tmp_path, new_l1_policy())
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        check_checkpoint(OpenVLAL1Config.model_validate(config.model_dump() | keys), str(tmp_path))
    assert "\n" not in str(error.value)


def test_the_policy_of_tokens_names_this_one(tmp_path: Path) -> None:
    config = write_published(tmp_path, new_l1_policy())
    own = {name: value for name, value in config.model_dump().items() if name in OpenVLAConfig.model_fields}
    with pytest.raises(ConfigError, match="policy=openvla_l1"):
        check_tokens(OpenVLAConfig.model_validate(own | {"name": "openvla"}))
