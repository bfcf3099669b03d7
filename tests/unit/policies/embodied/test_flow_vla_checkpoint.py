"""LeRobot's folders, for every policy that denoises by flow matching."""

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from acting_models import assert_weights_refused
from flow_vla_models import assert_refused, nothing, observe, write_checkpoint
from policy_rows import Room, uniforms_for
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.errors import ConfigError
from embodyflow.policies.env_match import check_match


def test_a_lerobot_folder_brings_weights_and_statistics(models: ModuleType, tmp_path: Path) -> None:
    loaded, source = models.Policy(write_checkpoint(models, tmp_path), "cpu"), models.new_policy()
    for name, value in source.model.state_dict().items():
        kept = value.bfloat16().float() if models.VLM in name else value
        assert torch.equal(loaded.model.state_dict()[name], kept), name
    source.model.load_state_dict(loaded.model.state_dict())
    observation = observe(loaded, 3)
    assert np.array_equal(observation["instruction_ids"], observe(source, 3)["instruction_ids"])
    left, right = (policy.act(observation, uniforms_for(policy, 3), 1.0) for policy in (loaded, source))
    assert np.array_equal(left.tokens, right.tokens) and np.array_equal(left.actions, right.actions)
    own = loaded.model.statistics.get_buffer(f"state_{models.LAYOUT.statistics.kinds[0]}")
    before = own.clone()
    loaded.set_normalization(torch.ones(9, 5), torch.ones(9, 3))
    assert torch.equal(own, before), "the checkpoint's own"


def test_an_exported_policy_loads_unchanged(models: ModuleType, tmp_path: Path) -> None:
    first = models.Policy(write_checkpoint(models, tmp_path / "first"), "cpu")
    weights = {name: value.numpy() + 0.125 for name, value in first.model.state_dict().items()}
    first.export(weights, tmp_path / "second")
    moved = shutil.move(tmp_path / "second", tmp_path / "moved")
    shutil.rmtree(tmp_path / "first")
    config = models.Config.model_validate(first.config.model_dump() | {"path": str(moved)})
    second = models.Policy(config, "cpu")
    for name, value in second.model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    described = json.loads((moved / "config.json").read_text())
    assert (described["type"], described["n_action_steps"]) == (models.LAYOUT.kind, 4)
    assert described[models.LAYOUT.num_steps] == 3
    assert not any(name.startswith("statistics") for name in load_file(moved / "model.safetensors"))


def test_a_pretrained_model_takes_other_sizes_and_statistics_of_demonstrations(
    models: ModuleType, tmp_path: Path
) -> None:
    config = write_checkpoint(models, tmp_path)
    keys = {"normalization": "demonstrations", "state_dim": 7, "action_dim": 2, "cameras": ("front",)}
    policy = models.Policy(models.Config.model_validate(config.model_dump() | keys), "cpu")
    first, second = models.LAYOUT.statistics.kinds
    found = policy.model.statistics
    assert len(set(found.get_buffer(f"state_{first}").tolist())) == 1
    assert found.get_buffer(f"action_{second}").tolist() == [1, 1]
    policy.set_normalization(torch.randn(9, 7), torch.randn(9, 2))
    weights = {name: value.numpy() for name, value in policy.model.state_dict().items()}
    policy.export(weights, tmp_path / "tuned")
    again = models.Config.model_validate(policy.config.model_dump() | {"path": str(tmp_path / "tuned")})
    loaded = models.Policy(again.model_copy(update={"normalization": "checkpoint"}), "cpu")
    name = f"statistics.action_{first}"
    assert np.array_equal(loaded.model.state_dict()[name], weights[name])


SPOILED = {
    "not there": (shutil.rmtree, {}, "policy.path=.*: is no local folder, and cannot be fetched from the hub: "),
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, "policy.path=.*; it has no config.json"),
    "another policy": (
        rewritten("config.json", lambda config: config.update(type="act")),
        {},
        r"must hold LeRobot's .* \(type '.*'\); its type is 'act'",
    ),
    "another robot's actions": (nothing, {"action_dim": 7}, "policy.action_dim=7: the checkpoint's action has 3"),
    "another robot's states": (nothing, {"state_dim": 4}, "policy.state_dim=4: the checkpoint's observation.state has"),
    "a camera more": (
        nothing,
        {"cameras": ("a", "b", "c")},
        "policy.cameras=.*: the checkpoint has only observation.images.image, observation.images.wrist_image",
    ),
    "cameras in another order": (
        nothing,
        {"cameras": ("wrist_image", "image")},
        "policy.cameras=.*: the checkpoint reads image, wrist_image, and in this order",
    ),
    "states left as they are": (
        rewritten("config.json", lambda config: config["normalization_mapping"].pop("STATE")),
        {},
        "its normalization_mapping must have STATE: (MEAN_STD|QUANTILES)",
    ),
    "no kinds of normalisation": (
        rewritten("config.json", lambda config: config.update(normalization_mapping=None)),
        {},
        "its normalization_mapping is None; allowed is an object",
    ),
    "more of a chunk": (nothing, {"chunk_size": 5}, "policy.chunk_size=5: the checkpoint's is 4"),
    "no statistics": (
        lambda folder: (folder / "policy_preprocessor.json").unlink(),
        {},
        "has no observation.state.(mean|q01); set policy.normalization=demonstrations",
    ),
    "scaled otherwise": (
        rewritten("config.json", lambda config: config["normalization_mapping"].update(ACTION="MIN_MAX")),
        {},
        "its normalization_mapping must have ACTION: (MEAN_STD|QUANTILES)",
    ),
    "no language model": (
        lambda folder: shutil.rmtree(folder / "vlm"),
        {},
        "its vision-language model vlm: is no local folder, and cannot be fetched from the hub: ",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        {},
        "has no weights; allowed are folders with model.safetensors",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(models: ModuleType, tmp_path: Path, case: str) -> None:
    assert_refused(models, tmp_path, *SPOILED[case])


def test_weights_of_another_model_are_refused(models: ModuleType, tmp_path: Path) -> None:
    config = write_checkpoint(models, tmp_path)
    file, first = tmp_path / "model.safetensors", "model.action_in_proj.bias"
    state = load_file(file)
    save_file({**state, "model.proprio.weight": torch.zeros(2)}, file)
    assert_weights_refused(config, "has model.proprio.weight, which is not a parameter of this model")
    save_file({name: value for name, value in state.items() if name != first}, file)
    assert_weights_refused(config, f"the weights lack {first}, and 0 more")
    save_file({**state, first: torch.zeros(77)}, file)
    assert_weights_refused(config, rf"has {first} of shape \[77\]; this model's has \[")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"normalization": "checkpoint"}, "normalization=checkpoint: must be demonstrations with scratch"),
        ({"action_dim": 9}, "action_dim=9: must be at most scratch.max_action_dim=8"),
        ({"noise_level": 0}, "greater than 0"),
        ({"cameras": ("image", "image")}, "must name each camera once"),
        ({"tokens": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_contradictory_configuration_is_refused(models: ModuleType, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        models.new_config(**keys)


def test_the_prompt_must_fit(models: ModuleType) -> None:
    fitting = models.NUM_TOKENS + len("push it")
    policy = models.new_policy(max_prompt_tokens=fitting)
    assert policy.encode_instruction("push it").tolist() == policy.encode_instruction("push it\n").tolist()
    message = f"policy.max_prompt_tokens={fitting}: must be at least {fitting + 2} for 'push it a'"
    with pytest.raises(ConfigError, match=message):
        policy.encode_instruction("push it a")


def test_the_environment_must_have_the_policys_observations(models: ModuleType) -> None:
    check_match(models.new_config(), Room(image=(64, 64, 3), wrist_image=(32, 48, 3)))
    with pytest.raises(ConfigError, match=r"policy.cameras: the environment has no 'wrist_image', only image, state"):
        check_match(models.new_config(), Room(image=(64, 64, 3)))
    with pytest.raises(ConfigError, match=r"policy.state_dim=4: the environment's state has \(5,\)"):
        check_match(models.new_config(state_dim=4), Room(image=(64, 64, 3), wrist_image=(32, 32, 3)))
    with pytest.raises(ConfigError, match=r"policy.action_dim=2: the environment's actions have \(3,\)"):
        check_match(models.new_config(action_dim=2), Room(image=(64, 64, 3), wrist_image=(32, 32, 3)))
