import json
from pathlib import Path

import pi05_models
import pytest
import torch
from acting_models import assert_weights_refused
from flow_vla_models import assert_refused, write_checkpoint
from pi0_models import FEATURES, HEAD, PREFIX, WORDS
from safetensors.torch import load_file, save_file
from spoiled_files import rewritten

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description
from embodyflow.policies.embodied.flow_vla.paligemma_layout_flow_vla import DEFAULTS
from embodyflow.policies.embodied.flow_vla.statistics_flow_vla import Quantiles
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import build_tokenizer
from embodyflow.policies.embodied.pi05.checkpoint_pi05 import LAYOUT
from embodyflow.policies.embodied.pi05.modeling_pi05 import PI05
from embodyflow.policies.embodied.pi05.policy_pi05 import PI05Policy
from embodyflow.policies.embodied.pi05.prompt_pi05 import StatePrompt
from embodyflow.policies.pretrained.weights_match import check_weights_match

EXPERT = f"{PREFIX}gemma_expert.model."


def test_the_published_model_has_the_published_parameters() -> None:
    config = pi05_models.new_config(scratch=None, path="lerobot/pi05_base")
    vlm, _ = LAYOUT.find_vlm("policy.path", config, Path(), {**DEFAULTS, **FEATURES})
    description = Description({**DEFAULTS, **FEATURES}, vlm, {}, None, None, Quantiles)
    prompt = StatePrompt(build_tokenizer())
    with torch.device("meta"):
        model = PI05(description, prompt, train_expert_only=True)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, shape in {
        "model.action_in_proj.weight": (1024, 32),
        "model.action_out_proj.weight": (32, 1024),
        "model.time_mlp_in.weight": (1024, 1024),
        "model.time_mlp_out.bias": (1024,),
        WORDS: (257152, 2048),
        f"{EXPERT}layers.17.input_layernorm.dense.weight": (3072, 1024),
        f"{EXPERT}layers.0.post_attention_layernorm.dense.bias": (3072,),
        f"{EXPERT}layers.17.mlp.down_proj.weight": (1024, 4096),
        f"{EXPERT}norm.dense.weight": (3072, 1024),
        "statistics.action_q99": (32,),
    }.items():
        assert shapes[name] == shape, name
    assert not any("state_proj" in name or "action_time_mlp" in name for name in shapes)
    # LeRobot's PI05Pytorch has 813 weights of the same names and shapes, two of them unused heads.
    assert len([name for name in shapes if not name.startswith("statistics")]) == 811
    sizes = [(value.numel(), value.requires_grad) for value in model.parameters()]
    assert sum(size for size, _ in sizes) == 3_353_433_872
    assert sum(size for size, trained in sizes if trained) == 430_098_464, "37 normalisations of 3.1 M are among them"


def test_the_published_base_loads_despite_its_other_names(tmp_path: Path) -> None:
    config = write_checkpoint(pi05_models, tmp_path)
    expected, file = PI05Policy(config, "cpu").model.state_dict(), tmp_path / "model.safetensors"
    state = load_file(file)
    save_file({name.removeprefix("model."): value for name, value in state.items() if name != WORDS}, file)
    check_weights_match(config)
    for name, value in PI05Policy(config, "cpu").model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    save_file({name: value for name, value in state.items() if name not in (WORDS, HEAD)}, file)
    assert_weights_refused(config, f"the weights lack {WORDS}, and 0 more")


def test_an_export_normalises_the_state_before_it_is_written_into_the_prompt(tmp_path: Path) -> None:
    write_checkpoint(pi05_models, tmp_path)
    steps = json.loads((tmp_path / "policy_preprocessor.json").read_text())["steps"]
    names = [each["registry_name"] for each in steps]
    writing = "pi05_prepare_state_tokenizer_processor_step"
    assert names[2:] == ["normalizer_processor", writing, "tokenizer_processor", "device_processor"]
    assert steps[3]["config"]["max_state_dim"] == 8
    assert steps[2]["config"]["norm_map"] == {"STATE": "QUANTILES", "ACTION": "QUANTILES", "VISUAL": "IDENTITY"}
    statistics = load_file(tmp_path / steps[2]["state_file"])
    assert sorted(statistics) == ["action.q01", "action.q99", "observation.state.q01", "observation.state.q99"]
    state = load_file(tmp_path / "model.safetensors")
    assert state[HEAD].shape == state[WORDS].shape and state[f"{PREFIX}gemma_expert.lm_head.weight"].shape == (98, 32)


def without_quantiles(folder: Path) -> None:
    """Leave mean and deviation in the place of the statistics, as a checkpoint of π0 has them."""
    file = folder / "policy_preprocessor_step_2_normalizer_processor.safetensors"
    kinds = {"q01": "mean", "q99": "std"}
    save_file({f"{n.rpartition('.')[0]}.{kinds[n[-3:]]}": value for n, value in load_file(file).items()}, file)


SPOILED = {
    "statistics without quantiles": (
        without_quantiles,
        {},
        "its policy_preprocessor.json has no observation.state.q01; set policy.normalization=demonstrations",
    ),
    "scaled otherwise": (
        rewritten("config.json", lambda config: config["normalization_mapping"].update(STATE="MEAN_STD")),
        {},
        "its normalization_mapping must have STATE: QUANTILES",
    ),
    "a π0": (
        rewritten("config.json", lambda config: config.update(type="pi0")),
        {},
        r"must hold LeRobot's π0.5 \(type 'pi05'\); its type is 'pi0'",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_an_unusable_checkpoint_is_refused_before_it_is_loaded(tmp_path: Path, case: str) -> None:
    assert_refused(pi05_models, tmp_path, *SPOILED[case])
