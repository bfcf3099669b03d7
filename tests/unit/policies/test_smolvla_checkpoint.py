import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policy_rows import Room, uniforms_for
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from smolvla_models import new_config, new_policy, observe

from embodyflow.errors import ConfigError
from embodyflow.policies.fit import check_fits
from embodyflow.policies.smolvla.checkpoint_smolvla import DEFAULTS, Description, check_checkpoint
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.smolvla.modeling_smolvla import SmolVLA
from embodyflow.policies.smolvla.policy_smolvla import SmolVLAPolicy

TEXT = {
    "model_type": "llama",
    "vocab_size": 49280,
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
}
VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "image_size": 512, "patch_size": 16}
FEATURES = {
    "input_features": {"observation.state": {"type": "STATE", "shape": [6]}},
    "output_features": {"action": {"type": "ACTION", "shape": [6]}},
}
"""The sizes of SmolVLM2-500M-Video-Instruct, and what LeRobot's smolvla_base takes and gives."""


def write_checkpoint(folder: Path) -> SmolVLAConfig:
    """Write a folder as LeRobot's are, in bfloat16 where it has it; return the configuration that takes it."""
    policy = new_policy()
    policy.export({name: value.numpy() for name, value in policy.model.state_dict().items()}, folder)
    state = load_file(folder / "model.safetensors")
    halved = {name: value.bfloat16() if ".vlm." in name else value for name, value in state.items()}
    save_file(halved, folder / "model.safetensors")
    return new_config(scratch=None, tokenizer=None, path=str(folder), normalization="checkpoint")


def test_the_published_model_has_the_published_parameters() -> None:
    vlm = {"model_type": "smolvlm", "scale_factor": 4, "text_config": TEXT, "vision_config": VISION}
    with torch.device("meta"):
        model = SmolVLA(Description({**DEFAULTS, **FEATURES}, vlm, {}, None, None), train_expert_only=True)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    prefix = "model.vlm_with_expert."
    for name, shape in {
        "model.state_proj.weight": (960, 32),
        "model.action_in_proj.weight": (720, 32),
        "model.action_out_proj.weight": (32, 720),
        "model.action_time_mlp_in.weight": (720, 1440),
        f"{prefix}vlm.lm_head.weight": (49280, 960),
        f"{prefix}vlm.model.text_model.layers.15.self_attn.k_proj.weight": (320, 960),
        f"{prefix}vlm.model.connector.modality_projection.proj.weight": (960, 12288),
        f"{prefix}vlm.model.vision_model.encoder.layers.11.mlp.fc1.weight": (3072, 768),
        f"{prefix}lm_expert.layers.14.self_attn.k_proj.weight": (320, 720),
        f"{prefix}lm_expert.layers.15.self_attn.k_proj.weight": (320, 320),
        f"{prefix}lm_expert.layers.15.self_attn.q_proj.weight": (960, 720),
        f"{prefix}lm_expert.layers.15.mlp.gate_proj.weight": (2048, 720),
    }.items():
        assert shapes[name] == shape, name
    assert f"{prefix}vlm.model.text_model.layers.16.mlp.up_proj.weight" not in shapes
    sizes = [(value.numel(), value.requires_grad) for value in model.parameters()]
    assert sum(size for size, _ in sizes) == 450_046_176, "450 M, says the paper"
    assert sum(size for size, trained in sizes if trained) == 99_880_992, "100 M of them the expert's"


def test_a_folder_of_lerobots_acts_by_its_weights_and_statistics(tmp_path: Path) -> None:
    loaded, source = SmolVLAPolicy(write_checkpoint(tmp_path), "cpu"), new_policy()
    for name, value in source.model.state_dict().items():
        kept = value.bfloat16().float() if ".vlm." in name else value
        assert torch.equal(loaded.model.state_dict()[name], kept), name
    source.model.load_state_dict(loaded.model.state_dict())
    observation = observe(loaded, 3)
    assert np.array_equal(observation["instruction_ids"], observe(source, 3)["instruction_ids"])
    left, right = (policy.act(observation, uniforms_for(policy, 3), 1.0) for policy in (loaded, source))
    assert np.array_equal(left.tokens, right.tokens) and np.array_equal(left.actions, right.actions)
    before = loaded.model.statistics.state_mean.clone()
    loaded.set_normalization(torch.ones(9, 5), torch.ones(9, 3))
    assert torch.equal(loaded.model.statistics.state_mean, before), "the checkpoint's own"


def test_what_is_exported_loads_as_it_was(tmp_path: Path) -> None:
    first = SmolVLAPolicy(write_checkpoint(tmp_path / "first"), "cpu")
    weights = {name: value.numpy() + 0.125 for name, value in first.model.state_dict().items()}
    first.export(weights, tmp_path / "second")
    moved = shutil.move(tmp_path / "second", tmp_path / "moved")
    shutil.rmtree(tmp_path / "first")
    config = SmolVLAConfig.model_validate(first.config.model_dump() | {"path": str(moved)})
    second = SmolVLAPolicy(config, "cpu")
    for name, value in second.model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    described = json.loads((moved / "config.json").read_text())
    assert (described["type"], described["n_action_steps"], described["num_steps"]) == ("smolvla", 4, 3)
    assert not any(name.startswith("statistics") for name in load_file(moved / "model.safetensors"))


def test_a_pretrained_model_is_given_other_sizes_and_the_demonstrations_statistics(tmp_path: Path) -> None:
    config = write_checkpoint(tmp_path)
    keys = {"normalization": "demonstrations", "state_dim": 7, "action_dim": 2, "cameras": ("front",)}
    policy = SmolVLAPolicy(SmolVLAConfig.model_validate(config.model_dump() | keys), "cpu")
    assert not policy.model.statistics.state_mean.any() and policy.model.statistics.action_std.shape == (2,)
    policy.set_normalization(torch.randn(9, 7), torch.randn(9, 2))
    weights = {name: value.numpy() for name, value in policy.model.state_dict().items()}
    policy.export(weights, tmp_path / "tuned")
    again = SmolVLAConfig.model_validate(policy.config.model_dump() | {"path": str(tmp_path / "tuned")})
    loaded = SmolVLAPolicy(again.model_copy(update={"normalization": "checkpoint"}), "cpu")
    assert np.array_equal(loaded.model.statistics.action_mean, weights["statistics.action_mean"])


def rewritten(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return rewrite


def nothing(folder: Path) -> None:
    """Leave it as it is."""


SPOILED = {
    "not there": (shutil.rmtree, {}, "policy.path=.*: is no folder here, and not to be had from the hub: "),
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, "policy.path=.*; it has no config.json"),
    "another policy": (
        rewritten("config.json", lambda config: config.update(type="act")),
        {},
        r"must hold LeRobot's SmolVLA \(type 'smolvla'\); its type is 'act'",
    ),
    "another robot's actions": (nothing, {"action_dim": 7}, "policy.action_dim=7: the checkpoint's action has 3"),
    "another robot's states": (nothing, {"state_dim": 4}, "policy.state_dim=4: the checkpoint's observation.state has"),
    "a camera more": (
        nothing,
        {"cameras": ("a", "b", "c")},
        "policy.cameras=.*: the checkpoint sees observation.images.image, observation.images.wrist_image alone",
    ),
    "more of a chunk": (nothing, {"chunk_size": 5}, "policy.chunk_size=5: the checkpoint's is 4"),
    "no statistics": (
        lambda folder: (folder / "policy_preprocessor.json").unlink(),
        {},
        "has no observation.state.mean; set policy.normalization=demonstrations",
    ),
    "scaled otherwise": (
        rewritten("config.json", lambda config: config["normalization_mapping"].update(ACTION="MIN_MAX")),
        {},
        "its normalization_mapping must have ACTION: MEAN_STD",
    ),
    "attends otherwise": (
        rewritten("config.json", lambda config: config.update(attention_mode="self_attn")),
        {},
        "its attention_mode is 'self_attn'; allowed is 'cross_attn'",
    ),
    "no language model": (
        lambda folder: shutil.rmtree(folder / "vlm"),
        {},
        "its vision-language model vlm: is no folder here, and not to be had from the hub: ",
    ),
    "another language model": (
        rewritten("vlm/config.json", lambda config: config.update(model_type="paligemma")),
        {},
        "its vision-language model vlm must be a SmolVLM; its model_type is 'paligemma'",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), {}, "has no model.safetensors"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_checkpoint_that_cannot_be_used_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    spoil, keys, message = SPOILED[case]
    config = write_checkpoint(tmp_path)
    check_checkpoint(config)
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        check_checkpoint(SmolVLAConfig.model_validate(config.model_dump() | keys))
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_refused_and_the_unused_head_may_be_missing(tmp_path: Path) -> None:
    config = write_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    save_file({**state, "model.proprio.weight": torch.zeros(2)}, file)
    with pytest.raises(ConfigError, match=r"has model.proprio.weight, which is no parameter of this model"):
        SmolVLAPolicy(config, "cpu")
    head, first = "model.vlm_with_expert.vlm.lm_head.weight", "model.action_in_proj.bias"
    save_file({name: value for name, value in state.items() if name not in (head, first)}, file)
    with pytest.raises(ConfigError, match=f"the weights lack {first}, and 0 more"):
        SmolVLAPolicy(config, "cpu")
    save_file({name: value for name, value in state.items() if name != head}, file)
    SmolVLAPolicy(config, "cpu")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"normalization": "checkpoint"}, "normalization=checkpoint: must be demonstrations with scratch"),
        ({"action_dim": 9}, "action_dim=9: must be at most scratch.max_action_dim=8"),
        ({"noise_level": 0}, "greater than 0"),
        ({"cameras": ("image", "image")}, "each only once"),
        ({"tokens": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        new_config(**keys)


def test_the_prompt_must_fit() -> None:
    policy = new_policy(max_prompt_tokens=8)
    assert policy.encode_instruction("push it")[-1] == policy.encode_instruction("push it\n")[-1] != 0
    with pytest.raises(ConfigError, match=r"policy.max_prompt_tokens=8: must be at least 10 for 'push it a'"):
        policy.encode_instruction("push it a")


def test_the_environment_must_show_what_the_policy_looks_at() -> None:
    check_fits(new_config(), Room(image=(64, 64, 3), wrist_image=(32, 48, 3)))
    with pytest.raises(ConfigError, match=r"policy.cameras: the environment shows no 'wrist_image', but image, state"):
        check_fits(new_config(), Room(image=(64, 64, 3)))
    with pytest.raises(ConfigError, match=r"policy.state_dim=4: the environment's state has \(5,\)"):
        check_fits(new_config(state_dim=4), Room(image=(64, 64, 3), wrist_image=(32, 32, 3)))
    with pytest.raises(ConfigError, match=r"policy.action_dim=2: the environment's actions have \(3,\)"):
        check_fits(new_config(action_dim=2), Room(image=(64, 64, 3), wrist_image=(32, 32, 3)))
