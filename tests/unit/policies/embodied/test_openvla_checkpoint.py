import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from acting_models import assert_weights_refused
from openvla_models import new_config, new_policy, observe
from policy_rows import Room
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.checkpoint_openvla import Description, check_checkpoint
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.modeling_openvla import AutoregressiveOpenVLA
from embodyflow.policies.embodied.openvla.policy_openvla import OpenVLAPolicy
from embodyflow.policies.env_match import check_match

STATISTICS = {"q01": [-0.5, 0.0, 0.0], "q99": [0.5, 0.2, 1.0], "mask": [True, True, False]}
PUBLISHED_CONFIG = {
    "model_type": "openvla",
    "image_sizes": [224, 224],
    "n_action_bins": 256,
    "pad_to_multiple_of": 64,
    "text_config": {"model_type": "llama", "pad_token_id": 32000, "torch_dtype": "bfloat16", "vocab_size": 32064},
    "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
    "use_fused_vision_backbone": True,
}


def write_checkpoint(folder: Path, policy: OpenVLAPolicy) -> OpenVLAConfig:
    """Write a folder in the published layout: two shards in bfloat16 with an index, statistics of several data sets."""
    state = {name: value.bfloat16() for name, value in policy.model.state_dict().items()}
    names, shards = sorted(state), {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: state[name].contiguous() for name in part}, folder / shard)
        shards |= dict.fromkeys(part, shard)
    statistics = {
        "bridge_orig": {"action": STATISTICS},
        "libero_object_no_noops": {"action": STATISTICS, "proprio": {}},
    }
    write = {
        "model.safetensors.index.json": {"weight_map": shards},
        "config.json": {**policy.description.config, "norm_stats": {}, "auto_map": {"AutoConfig": "theirs.Config"}},
        "dataset_statistics.json": statistics,
        "preprocessor_config.json": {"means": [[0.4, 0.4, 0.4], [0.5, 0.5, 0.5]], "stds": [[0.2] * 3, [0.5] * 3]},
    }
    for name, content in write.items():
        (folder / name).write_text(json.dumps(content))
    policy.tokenizer.save_pretrained(folder)
    return new_config(
        scratch=None, tokenizer=None, path=str(folder), unnorm_key="libero_object", **{"gripper": "binary_inverted"}
    )


def test_the_published_model_has_the_published_parameters() -> None:
    with torch.device("meta"):
        model = AutoregressiveOpenVLA(Description(PUBLISHED_CONFIG, {}, {}, None), 7)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert sum(value.numel() for value in model.state_dict().values()) == 7_541_237_184
    for name, shape in {
        "vision_backbone.featurizer.cls_token": (1, 1, 1024),
        "vision_backbone.featurizer.reg_token": (1, 4, 1024),
        "vision_backbone.featurizer.pos_embed": (1, 256, 1024),
        "vision_backbone.featurizer.patch_embed.proj.weight": (1024, 3, 14, 14),
        "vision_backbone.featurizer.blocks.23.ls2.scale_factor": (1024,),
        "vision_backbone.featurizer.blocks.0.attn.qkv.weight": (3072, 1024),
        "vision_backbone.fused_featurizer.blocks.26.mlp.fc1.weight": (4304, 1152),
        "vision_backbone.fused_featurizer.attn_pool.latent": (1, 1, 1152),
        "vision_backbone.fused_featurizer.attn_pool.kv.bias": (2304,),
        "projector.fc1.weight": (8704, 2176),
        "projector.fc3.weight": (4096, 4096),
        "language_model.model.embed_tokens.weight": (32064, 4096),
        "language_model.model.layers.31.self_attn.q_proj.weight": (4096, 4096),
        "language_model.lm_head.weight": (32064, 4096),
    }.items():
        assert shapes[name] == shape, name


def test_a_folder_in_the_published_layout_acts_by_its_weights_and_statistics(tmp_path: Path) -> None:
    source = new_policy(decoding="parallel", chunk_size=2)
    for parameter in source.model.parameters():
        parameter.data = parameter.bfloat16().float()
    config = write_checkpoint(tmp_path, source).model_copy(update={"decoding": "parallel", "chunk_size": 2})
    loaded = OpenVLAPolicy(config, "cpu")
    ours, theirs = loaded.model.state_dict(), source.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    source.images = loaded.images  # the folder's own colours
    observation = observe(loaded, 3)
    assert np.array_equal(observation["instruction_ids"], observe(source, 3)["instruction_ids"])
    left, right = (policy.act(observation, None, 1.0) for policy in (loaded, source))
    assert np.array_equal(left.tokens, right.tokens) and np.array_equal(left.log_probs, right.log_probs)
    assert not np.array_equal(left.actions, right.actions)
    assert np.abs(left.actions[..., 0]).max() <= 0.5 and set(np.unique(left.actions[..., 2])) <= {-1.0, 1.0}


@pytest.mark.parametrize("kind", ["scratch", "published"])
def test_an_exported_policy_loads_unchanged(tmp_path: Path, kind: str) -> None:
    policy = new_policy()
    if kind == "published":
        (tmp_path / "source").mkdir()
        policy = OpenVLAPolicy(write_checkpoint(tmp_path / "source", policy), "cpu")
    weights = {name: value.numpy() + 0.125 for name, value in policy.model.state_dict().items()}
    folder = tmp_path / "policy"
    folder.mkdir()
    policy.export(weights, folder)
    written = load_file(folder / "model.safetensors")
    assert written.keys() == weights.keys()
    keys = {"path": str(folder), "scratch": None, "tokenizer": None}
    loaded = OpenVLAPolicy(OpenVLAConfig.model_validate(policy.config.model_dump() | keys), "cpu")
    for name, value in loaded.model.state_dict().items():
        np.testing.assert_array_equal(value, weights[name])
    policy.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    observation = observe(policy, 3)
    left, right = (each.act(observation, None, 1.0) for each in (loaded, policy))
    assert np.array_equal(left.actions, right.actions) and np.array_equal(left.log_probs, right.log_probs)
    if kind == "published":
        for name in ("config.json", "dataset_statistics.json", "preprocessor_config.json"):
            assert (folder / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
        assert not (folder / "model.safetensors.index.json").exists()


SPOILED = {
    "not there": (shutil.rmtree, {}, "policy.path=.*: is no local folder, and cannot be fetched from the hub: "),
    "no config": (lambda folder: (folder / "config.json").unlink(), {}, "policy.path=.*; it has no config.json"),
    "another model": (
        rewritten("config.json", lambda config: config.update(model_type="llama")),
        {},
        r"must hold an OpenVLA \(model_type 'openvla'\); its model_type is 'llama'",
    ),
    "unknown statistics": (
        lambda folder: None,
        {"unnorm_key": "libero"},
        "policy.unnorm_key=libero: allowed are bridge_orig, libero_object_no_noops",
    ),
    "several statistics": (
        lambda folder: None,
        {"unnorm_key": None},
        "policy.unnorm_key=None: allowed are bridge_orig",
    ),
    "other actions": (lambda folder: None, {"action_dim": 7}, "policy.action_dim=7: .* libero_object_no_noops have 3"),
    "regression": (
        lambda folder: (folder / "action_head--150000_checkpoint.pt").touch(),
        {},
        "predicts actions by a regression head",
    ),
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        {},
        "has no tokenizer.json; set policy.tokenizer to one that has",
    ),
    "no weights": (
        lambda folder: [file.unlink() for file in folder.glob("*.safetensors")],
        {},
        "has no weights in safetensors",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    spoil, keys, message = SPOILED[case]
    config = write_checkpoint(tmp_path, new_policy())
    check_checkpoint(config)
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        check_checkpoint(OpenVLAConfig.model_validate(config.model_dump() | keys))
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    config = write_checkpoint(tmp_path, new_policy())
    shard = tmp_path / "model-00001-of-00002.safetensors"
    state = load_file(shard)
    first = sorted(state)[0]
    save_file({**state, "proprio_projector.fc1.weight": torch.zeros(2)}, shard)
    assert_weights_refused(config, "has proprio_projector.fc1.weight, which is not a parameter of this model")
    save_file({name: value for name, value in state.items() if name != first}, shard)
    assert_weights_refused(config, f"the weights lack {first}, and 0 more")
    rewritten("config.json", lambda content: content.pop("vision_towers"))(tmp_path)
    with pytest.raises(ConfigError, match="vision tower 'scratch_dinov2' is unknown; allowed are vit_large_patch14"):
        OpenVLAPolicy(config, "cpu")


def test_the_environment_must_have_the_policys_observations() -> None:
    config = new_config(cameras=("image", "wrist_image"))
    check_match(config, Room(image=(64, 64, 3), wrist_image=(32, 48, 3)))
    with pytest.raises(ConfigError, match=r"policy.cameras: the environment has no 'wrist_image', only image, state"):
        check_match(config, Room(image=(64, 64, 3)))
    with pytest.raises(ConfigError, match=r"policy.cameras: the environment has 'image' in \(64, 64\); set"):
        check_match(config, Room(image=(64, 64), wrist_image=(32, 32, 3)))
