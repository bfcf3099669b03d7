"""ACT: its numbers beside LeRobot's, its loss, its log-densities, its folders, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from act_models import (
    GOLDEN,
    GOLDEN_LOSSES,
    IMAGES,
    SCRATCH,
    export,
    golden_imitation,
    golden_observation,
    golden_policy,
    new_config,
    new_policy,
)
from acting_models import assert_weights_refused, observe
from flow_vla_models import nothing
from policy_rows import as_batch, uniforms_for
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.errors import ConfigError
from embodyflow.policies.base import NormalizationStatistics
from embodyflow.policies.embodied.act.checkpoint_act import check_checkpoint
from embodyflow.policies.embodied.act.configuration_act import ACTConfig, ACTScratchConfig
from embodyflow.policies.embodied.act.layers_act import Attention
from embodyflow.policies.embodied.act.policy_act import ACTPolicy
from embodyflow.policies.laplace import standard_samples
from embodyflow.policies.pretrained.weights_match import check_weights_match

KINDS = pytest.mark.parametrize("kind", GOLDEN)


@KINDS
def test_actions_are_those_of_lerobot(kind: str) -> None:
    policy, seen = golden_policy(kind), golden_observation(kind)
    observation = {name: values.numpy() for name, values in seen.items()}
    decision = policy.act(observation, None, 1.0)
    np.testing.assert_allclose(decision.tokens, GOLDEN[kind], atol=2e-5)
    expected = policy.model.statistics.actions(torch.tensor(GOLDEN[kind]).view(2, 3, 2))
    np.testing.assert_allclose(decision.actions, expected, atol=2e-5)


@KINDS
def test_the_loss_has_the_parts_of_lerobots(kind: str) -> None:
    policy, (absolute, divergence) = golden_policy(kind), GOLDEN_LOSSES[kind]
    seen, (actions, mask, uniforms) = golden_observation(kind), golden_imitation(policy)
    images = seen["image"][:, None] if kind == "images" else None
    target = policy.model.statistics.standardise("action", actions, 2)
    _, each, _ = policy.model.reconstruct(seen["state"], images, target, mask, torch.zeros(2, 4))
    assert each.mean().item() == pytest.approx(divergence, rel=1e-5)
    weighted = 3.0 * (6 * each[0] + 4 * each[1]).item()  # numbers that count in each row
    for weight, expected in ((0.0, 12 * absolute), (3.0, 12 * absolute + weighted)):  # LeRobot's mean counts padding
        policy.config = policy.config.model_copy(update={"kl_weight": weight})
        assert policy.imitation_loss(seen, actions, mask, 0.0, uniforms).item() == pytest.approx(expected, rel=1e-5)


def test_attention_is_torchs_own() -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(16, 4), torch.nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    queries, keys, values = torch.randn(3, 2, 5, 16)
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    expected, _ = theirs(queries, keys, values, key_padding_mask=~mask)
    torch.testing.assert_close(ours(queries, keys, values, mask), expected)


def test_a_latent_of_zeros_acts_and_masked_actions_change_no_latent() -> None:
    policy = new_policy()
    seen, mask = torch.randn(2, 5), torch.tensor([[True, True, False]] * 2)
    actions = torch.randn(2, 3, 2)
    others = torch.where(mask[..., None], actions, actions + 5)
    first, second = (policy.model.model.encode(seen, each, mask) for each in (actions, others))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    changed, _ = policy.model.model.encode(seen, actions + 5, mask)
    assert (changed - first[0]).abs().max() > 1e-3
    zeros, _ = policy.model.model.act(seen, None, torch.zeros(2, 4))
    ones, _ = policy.model.model.act(seen, None, torch.ones(2, 4))
    assert torch.equal(policy.model.model.act(seen, None)[0], zeros) and (zeros - ones).abs().max() > 1e-3


def test_decisions_are_laplace_samples_around_the_medians() -> None:
    policy = new_policy(initial_scale=0.2)
    policy.set_normalization(torch.randn(50, 5), 3 + 2 * torch.randn(50, 2))
    observation, uniforms = observe(policy, 4), uniforms_for(policy, 4)
    greedy, drawn = policy.act(observation, None, 1.0), policy.act(observation, uniforms, 1.5)
    distances = (drawn.tokens - greedy.tokens) / (0.2 * 1.5)
    np.testing.assert_allclose(distances, standard_samples(torch.from_numpy(uniforms)), atol=1e-4)
    np.testing.assert_allclose(drawn.log_probs, -np.abs(distances) - np.log(2 * 0.2 * 1.5), atol=1e-4)
    statistics = policy.model.statistics
    expected = drawn.tokens.reshape(4, 3, 2) * statistics.action_std.numpy() + statistics.action_mean.numpy()
    np.testing.assert_allclose(drawn.actions, expected, rtol=1e-5, atol=1e-5)
    _, entropy = policy.evaluate(as_batch(policy, observation, drawn.tokens), 1.5)
    np.testing.assert_allclose(entropy[:, 1].detach(), 1 + np.log(2 * 0.2 * 1.5), rtol=1e-5)


def test_a_shorter_chunk_leaves_what_is_planned_as_it_is(tmp_path: Path) -> None:
    whole = new_policy()
    export(whole, tmp_path)
    part = ACTPolicy(loaded_config(tmp_path, chunk_size=2), "cpu")
    assert (part.horizon, part.num_tokens, part.num_draws) == (3, 4, 6)
    observation, uniforms = observe(whole, 3), uniforms_for(whole, 3)
    left, right = (policy.act(observation, uniforms, 1.0) for policy in (part, whole))
    assert np.array_equal(left.tokens, right.tokens) and np.array_equal(left.actions, right.actions)
    assert np.array_equal(left.log_probs, right.log_probs[:, :4])
    batch = as_batch(part, observation, left.tokens)
    before = part.evaluate(batch, 1.0)[0]
    np.testing.assert_allclose(before[:, 1].detach(), left.log_probs, atol=2e-5)
    batch["action_tokens"][..., 4:] += 1.0
    assert torch.equal(part.evaluate(batch, 1.0)[0], before), "actions that are not executed have no log-prob"


def test_cloning_lowers_the_loss_and_acts_as_demonstrated() -> None:
    policy = new_policy(kl_weight=1.0)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(64, 5, generator=generator)
    actions = torch.stack([0.5 * states[:, :2], states[:, 1:3], -states[:, 3:]], dim=1)
    policy.set_normalization(states, actions[:, 0])
    optimizer, losses = torch.optim.Adam(policy.model.parameters(), lr=5e-3), []
    for _ in range(120):
        draws = torch.rand(64, policy.num_imitation_draws, generator=generator)
        loss = policy.imitation_loss({"state": states}, actions, torch.ones(64, 3, dtype=torch.bool), 0.0, draws)
        optimizer.zero_grad()
        (loss / actions.numel()).backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.3 * np.mean(losses[:20])
    greedy = policy.act({"state": states.numpy()}, None, 1.0).actions
    assert np.abs(greedy - actions.numpy()).mean() < 0.25 * actions.abs().mean().item()
    assert policy.model.log_scale.tolist() == new_policy().model.log_scale.tolist(), "the scale is left for RL"


def test_statistics_of_a_data_set_take_the_place_of_those_of_demonstrations() -> None:
    policy = new_policy()
    numbers = [torch.arange(1, size + 1, dtype=torch.float64) * scale for size, scale in ((5, 1), (5, 2), (2, 3))]
    policy.load_normalization(NormalizationStatistics(10, *numbers, torch.zeros(2, dtype=torch.float64)))
    found = policy.model.statistics
    assert found.state_mean.tolist() == [1, 2, 3, 4, 5] and found.state_std.tolist() == [2, 4, 6, 8, 10]
    assert found.action_mean.tolist() == [3, 6]
    torch.testing.assert_close(found.action_std, torch.full((2,), 0.01))  # an action that never varies


def loaded_config(folder: Path, **keys: Any) -> ACTConfig:
    return new_config(**({"path": str(folder), "scratch": None, "normalization": "checkpoint"} | keys))


@KINDS
def test_an_export_is_lerobots_folder_and_loads_bit_identically(kind: str, tmp_path: Path) -> None:
    policy = golden_policy(kind)
    policy.set_normalization(torch.randn(50, 5), torch.randn(50, 2))
    weights = export(policy, tmp_path / "first")
    moved = Path(shutil.move(tmp_path / "first", tmp_path / "moved"))
    keys = IMAGES if kind == "images" else {}
    check_checkpoint(config := loaded_config(moved, **keys))
    loaded = ACTPolicy(config, "cpu")
    for name, value in loaded.model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    described = json.loads((moved / "config.json").read_text())
    assert (described["type"], described["chunk_size"], described["n_action_steps"]) == ("act", 3, 3)
    assert "backbone_width" not in described
    names = set(load_file(moved / "model.safetensors"))
    assert all(name.startswith("model.") for name in names) and "model.vae_encoder_pos_enc" in names
    processing = load_file(moved / "policy_preprocessor_step_3_normalizer_processor.safetensors")
    own = 2 if kind == "states" else 3
    assert processing["observation.state.mean"].tolist() == weights["statistics.state_mean"][:own].tolist()
    assert processing["observation.environment_state.std"].tolist() == weights["statistics.state_std"][own:].tolist()
    if kind == "images":
        assert processing["observation.images.image.mean"].shape == (3, 1, 1)
    loaded.set_normalization(torch.ones(9, 5), torch.ones(9, 2))
    assert torch.equal(loaded.model.statistics.state_mean, torch.from_numpy(weights["statistics.state_mean"]))


def test_a_folder_of_lerobot_has_no_scale_and_leaves_the_environments_state_as_it_is(tmp_path: Path) -> None:
    policy = new_policy()
    policy.set_normalization(torch.randn(50, 5), torch.randn(50, 2))
    weights = export(policy, tmp_path)
    (tmp_path / "exploration.safetensors").unlink()
    rewritten("config.json", lambda config: config["normalization_mapping"].pop("ENV"))(tmp_path)
    loaded = ACTPolicy(loaded_config(tmp_path, initial_scale=0.3), "cpu")
    torch.testing.assert_close(loaded.model.log_scale.exp(), torch.full((2,), 0.3))
    found = loaded.model.statistics
    assert found.state_mean[:2].tolist() == weights["statistics.state_mean"][:2].tolist()
    assert found.state_mean[2:].tolist() == [0] * 3 and found.state_std[2:].tolist() == [1] * 3


def test_an_export_of_longer_chunks_asks_lerobot_for_no_ensemble(tmp_path: Path) -> None:
    export(new_policy(), tmp_path / "first")
    _config(lambda config: config.update(temporal_ensemble_coeff=0.01, n_action_steps=1))(tmp_path / "first")
    for size, kept in ((2, None), (1, 0.01)):
        policy = ACTPolicy(loaded_config(tmp_path / "first", chunk_size=size), "cpu")
        export(policy, tmp_path / str(size))
        described = json.loads((tmp_path / str(size) / "config.json").read_text())
        assert (described["n_action_steps"], described["temporal_ensemble_coeff"]) == (size, kept)


def _config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return rewritten("config.json", change)


PREPROCESSING, STATISTICS = "policy_preprocessor.json", "policy_preprocessor_step_3_normalizer_processor.safetensors"


def _with_statistics(folder: Path, changed: dict[str, torch.Tensor]) -> None:
    save_file({**load_file(folder / STATISTICS), **changed}, folder / STATISTICS)


SPOILED: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "another policy": (
        _config(lambda config: config.update(type="diffusion")),
        {},
        r"must hold LeRobot's ACT \(type 'act'\); its type is 'diffusion'",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, "it has no config.json"),
    "another robot's actions": (nothing, {"action_dim": 7}, "policy.action_dim=7: the checkpoint's action has 2"),
    "another robot's states": (nothing, {"state_dim": 9}, r"policy.state_dim=9: the checkpoint's states have 2 \+ 3"),
    "states cut elsewhere": (
        nothing,
        {"robot_state_dim": 3},
        "policy.robot_state_dim=3: the checkpoint's observation.state has 2 of 5",
    ),
    "a camera more": (nothing, {"cameras": ("top",)}, "policy.cameras=.*: the checkpoint reads no images"),
    "more of a chunk": (nothing, {"chunk_size": 4}, "policy.chunk_size=4: the checkpoint's is 3"),
    "no statistics": (
        lambda folder: (folder / "policy_preprocessor.json").unlink(),
        {},
        "has no observation.state.mean; set policy.normalization=demonstrations",
    ),
    "scaled otherwise": (
        _config(lambda config: config["normalization_mapping"].update(ACTION="MIN_MAX")),
        {},
        "its normalization_mapping must have ACTION: MEAN_STD",
    ),
    "normalised before": (_config(lambda config: config.update(pre_norm=True)), {}, "its pre_norm is True; allowed is"),
    "a deeper ResNet": (
        _config(lambda config: config.update(vision_backbone="resnet50")),
        {},
        "its vision_backbone is 'resnet50'; allowed are resnet18, resnet34",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), {}, "has no weights; allowed are folders"),
    "states left as they are": (
        _config(lambda config: config["normalization_mapping"].pop("STATE")),
        {},
        "its normalization_mapping must have STATE: MEAN_STD",
    ),
    "words for a count": (_config(lambda config: config.update(chunk_size="3")), {}, "its chunk_size is '3'; allowed"),
    "heads of no whole size": (
        _config(lambda config: config.update(n_heads=3)),
        {},
        "its dim_model is 16; allowed are multiples of its n_heads, 3",
    ),
    "perhaps a latent": (_config(lambda config: config.update(use_vae="no")), {}, "its use_vae is 'no'; allowed"),
    "no features": (_config(lambda config: config.update(input_features=None)), {}, "its input_features is None"),
    "actions in a matrix": (
        _config(lambda config: config["output_features"]["action"].update(shape=[2, 3])),
        {},
        r"the shape of its action is \[2, 3\]; allowed is one whole number from 1",
    ),
    "depth images": (
        _config(lambda config: config["input_features"].update({"observation.images.top": {"shape": [1, 8, 8]}})),
        {"cameras": ("top",)},
        r"the shape of its observation.images.top is \[1, 8, 8\]; allowed is \[3, height, width\]",
    ),
    "statistics that are not numbers": (
        lambda folder: _with_statistics(folder, {"action.std": torch.full((2,), torch.nan)}),
        {},
        r"its action.std is \[nan, nan\]; allowed are finite numbers",
    ),
    "a statistic for all": (
        lambda folder: _with_statistics(folder, {"action.mean": torch.zeros(1)}),
        {},
        "its action.mean has 1 numbers; allowed are 2",
    ),
    "statistics of other states": (
        lambda folder: _with_statistics(
            folder, {"observation.state.mean": torch.ones(3), "observation.environment_state.mean": torch.ones(2)}
        ),
        {},
        "its observation.state.mean has 3 numbers; allowed are 2",
    ),
    "no file of statistics": (
        lambda folder: (folder / STATISTICS).unlink(),
        {},
        f"{STATISTICS} is missing",
    ),
    "statistics cut short": (
        lambda folder: (folder / STATISTICS).write_bytes((folder / STATISTICS).read_bytes()[:-4]),
        {},
        f"{STATISTICS} is cut short: 4 of its bytes are missing",
    ),
    "steps that are none": (
        rewritten(PREPROCESSING, lambda steps: steps.update(steps=["a"])),
        {},
        "policy_preprocessor.json is damaged: its steps must be a list of objects",
    ),
    "statistics elsewhere": (
        rewritten(PREPROCESSING, lambda steps: steps["steps"][3].update(state_file="../x.safetensors")),
        {},
        "the state_file in policy_preprocessor.json is '../x.safetensors'; allowed are files beside it",
    ),
    "a scale cut short": (
        lambda folder: (folder / "exploration.safetensors").write_bytes(b""),
        {},
        "exploration.safetensors is damaged or cut short",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(case: str, tmp_path: Path) -> None:
    spoil, keys, message = SPOILED[case]
    export(new_policy(), tmp_path)
    check_checkpoint(loaded_config(tmp_path))
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        check_checkpoint(loaded_config(tmp_path, **keys))
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    export(new_policy(), tmp_path)
    file, name = tmp_path / "model.safetensors", "model.action_head.bias"
    state = load_file(file)
    save_file({**state, "model.further": torch.zeros(2)}, file)
    assert_weights_refused(loaded_config(tmp_path), "has model.further, which is not a parameter of this model")
    save_file({key: value for key, value in state.items() if key != name}, file)
    assert_weights_refused(loaded_config(tmp_path), f"the weights lack {name}, and 0 more")


@pytest.mark.parametrize("name", ["model.safetensors", "exploration.safetensors"])
def test_weights_that_are_not_numbers_are_refused(name: str, tmp_path: Path) -> None:
    export(new_policy(), tmp_path)
    state = load_file(tmp_path / name)
    spoiled = min(state)
    state[spoiled].view(-1)[-1] = torch.nan
    save_file(state, tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} has NaN or infinite numbers in {spoiled}"):
        ACTPolicy(loaded_config(tmp_path), "cpu")


MISFITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a longer chunk": (
        _config(lambda config: config.update(chunk_size=5)),
        r"has model.decoder_pos_embed.weight of shape \[3, 16\]; this model's has \[5, 16\]",
    ),
    "no latent": (
        _config(lambda config: config.update(use_vae=False)),
        r"has model.vae_encoder.*, which is not a parameter of this model",
    ),
    "a further layer": (
        _config(lambda config: config.update(n_decoder_layers=3)),
        "the weights lack model.decoder.layers.2.*, and 17 more",
    ),
    "another robot's scale": (
        lambda folder: save_file({"log_scale": torch.zeros(7)}, folder / "exploration.safetensors"),
        r"exploration.safetensors has log_scale of shape \[7\]; this model's has \[2\]",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_their_config_are_refused_from_their_headers(case: str, tmp_path: Path) -> None:
    spoil, message = MISFITS[case]
    export(new_policy(), tmp_path)
    check_weights_match(loaded_config(tmp_path))
    spoil(tmp_path)
    check_checkpoint(loaded_config(tmp_path))
    with pytest.raises(ConfigError, match=message):
        check_weights_match(loaded_config(tmp_path))


def _two_cameras(folder: Path, **keys: Any) -> ACTConfig:
    """Export a policy of two cameras whose statistics differ, and return the configuration that loads it."""
    policy = new_policy(robot_state_dim=3, cameras=("front", "wrist"))
    policy.model.statistics.image_mean.copy_(torch.arange(6.0).view(2, 3))
    export(policy, folder)
    return loaded_config(folder, **({"robot_state_dim": 3, "cameras": ("front", "wrist")} | keys))


def test_cameras_in_another_order_than_the_checkpoints_are_refused(tmp_path: Path) -> None:
    _two_cameras(tmp_path)
    for cameras in (("front", "wrist"), ("image", "image2"), ("front", "hand")):
        check_checkpoint(_two_cameras(tmp_path, cameras=cameras))
    for cameras in (("wrist", "front"), ("hand", "front")):
        with pytest.raises(ConfigError, match=r"policy.cameras=.*: the checkpoint reads front, wrist, and in this ord"):
            check_checkpoint(_two_cameras(tmp_path, cameras=cameras))


def test_images_have_the_checkpoints_statistics_even_with_those_of_demonstrations(tmp_path: Path) -> None:
    config = _two_cameras(tmp_path, normalization="demonstrations")
    found = ACTPolicy(config, "cpu").model.statistics
    assert found.image_mean.tolist() == [[0, 1, 2], [3, 4, 5]] and found.state_mean.tolist() == [0] * 5
    (tmp_path / PREPROCESSING).unlink()
    old = ACTPolicy(config, "cpu").model.statistics
    torch.testing.assert_close(old.image_mean[1], torch.tensor([0.485, 0.456, 0.406]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"normalization": "checkpoint"}, "normalization=checkpoint: must be demonstrations with scratch"),
        ({"robot_state_dim": None}, "robot_state_dim=null: without cameras it must be from 1 to state_dim - 1 = 4"),
        ({"robot_state_dim": 5}, "robot_state_dim=5: without cameras it must be from 1 to state_dim - 1 = 4"),
        ({"robot_state_dim": 6}, "robot_state_dim=6: must be at most state_dim=5"),
        ({"cameras": ("image", "image")}, "must name each camera once"),
        ({"initial_scale": 0}, "greater than 0"),
        ({"scratch": None}, "exactly one of path and scratch must be set"),
        ({"tokenizer": "x"}, "Extra inputs are not permitted"),
        ({"scratch": SCRATCH.model_dump() | {"n_heads": 3}}, "dim_model=16 must be a multiple of n_heads=3"),
        ({"scratch": {"vision_backbone": "resnet50"}}, "'resnet18' or 'resnet34'"),
    ],
)
def test_a_contradictory_configuration_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        new_config(**keys)


def test_sizes_of_scratch_have_lerobots_names() -> None:
    assert set(ACTScratchConfig.model_fields) - {"backbone_width"} <= set(new_policy().description.config)
