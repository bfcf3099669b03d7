from pathlib import Path

import pytest
import smolvla_models
import torch
from flow_vla_models import assert_refused, write_checkpoint
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.smolvla.checkpoint_smolvla import DEFAULTS
from embodyflow.policies.embodied.smolvla.modeling_smolvla import SmolVLA
from embodyflow.policies.embodied.smolvla.policy_smolvla import SmolVLAPolicy

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
"""Sizes of SmolVLM2-500M-Video-Instruct, and inputs and outputs of LeRobot's smolvla_base."""


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


SPOILED = {
    "attends otherwise": (
        rewritten("config.json", lambda config: config.update(attention_mode="self_attn")),
        {},
        "its attention_mode is 'self_attn'; allowed is 'cross_attn'",
    ),
    "another language model": (
        rewritten("vlm/config.json", lambda config: config.update(model_type="paligemma")),
        {},
        "its vision-language model vlm must be a SmolVLM; its model_type is 'paligemma'",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    assert_refused(smolvla_models, tmp_path, *SPOILED[case])


def test_the_unused_head_may_be_missing(tmp_path: Path) -> None:
    config = write_checkpoint(smolvla_models, tmp_path)
    file, head = tmp_path / "model.safetensors", "model.vlm_with_expert.vlm.lm_head.weight"
    save_file({name: value for name, value in load_file(file).items() if name != head}, file)
    assert not SmolVLAPolicy(config, "cpu").model.state_dict()[head].any()
