"""A checkpoint that lacks a weight is refused, where transformers would draw the weight at random."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from language_models import save_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, Qwen3ForCausalLM

from embodyflow.config.generation import HFConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.modeling_causal_lm import build_model
from embodyflow.policies.pretrained.whole_models import check_whole, load_whole
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager, check_reward

MISSING = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(params=[True, False], ids=["tied", "with a head"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Save a language model of random weights."""
    return save_model(tmp_path, tied=request.param, num_labels=1, pad_token_id=0)


def test_a_whole_model_is_loaded(folder: Path) -> None:
    model = load_whole(AutoModelForCausalLM, folder, "policy.path=x")
    assert model.config.hidden_size == 32


def test_a_policy_and_an_engine_refuse_a_model_without_a_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if name != MISSING}, file, {"format": "pt"})
    message = rf"^policy.path={folder}: lacks 1 of the weights of a Qwen3ForCausalLM, such as {MISSING}, wh"
    with pytest.raises(ConfigError, match=message):
        build_model(CausalLMConfig(path=str(folder)), AutoTokenizer.from_pretrained(folder))
    with pytest.raises(ConfigError, match=message):
        HFEngine(HFConfig(), folder, "cpu")


SPOILED = {
    "without one": (
        lambda state: state.pop(MISSING),
        f"lacks 1 of the weights of a Qwen3ForCausalLM, such as {MISSING}",
    ),
    "of another shape": (
        lambda state: state.update({MISSING: torch.zeros(64, 31)}),
        rf"has {MISSING} of shape \[64, 31\]; that of this Qwen3ForCausalLM has \[64, 32\]$",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_weights_are_refused_from_their_headers_as_when_they_are_loaded(
    folder: Path, spoil: Callable[[dict[str, torch.Tensor]], object], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    check_whole(AutoModelForCausalLM, folder, "policy.path=x")
    file = folder / "model.safetensors"
    state = load_file(file)
    spoil(state)
    save_file(state, file, {"format": "pt"})
    capfd.readouterr()
    with pytest.raises(ConfigError, match=f"^policy.path=x: {message}"):
        check_whole(AutoModelForCausalLM, folder, "policy.path=x")
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConfigError, match=f"^policy.path=x: {message}"):
        load_whole(AutoModelForCausalLM, folder, "policy.path=x")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": "many"}, "transformers cannot read its config.json: "),
        ({"num_hidden_layers": 3}, "transformers cannot read its config.json: "),
        ({"num_hidden_layers": 3, "layer_types": None}, "lacks 11 of the weights of a Qwen3ForCausalLM, such as model"),
        ({"hidden_act": "zelu"}, "transformers cannot build the model of its config.json: "),
    ],
)
def test_a_description_of_no_model_is_refused(folder: Path, keys: dict[str, object], message: str) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | keys))
    with pytest.raises(ConfigError, match=f"^x: {message}") as error:
        check_whole(AutoModelForCausalLM, folder, "x")
    assert "\n" not in str(error.value)


def test_quantised_models_and_pickles_are_left_to_the_worker(folder: Path) -> None:
    file, config = folder / "model.safetensors", folder / "config.json"
    state = load_file(file)
    save_file({name: value for name, value in state.items() if name != MISSING}, file, {"format": "pt"})
    description = json.loads(config.read_text())
    config.write_text(json.dumps({**description, "quantization_config": {"quant_method": "mxfp4"}}))
    check_whole(AutoModelForCausalLM, folder, "x")
    config.write_text(json.dumps(description))
    file.rename(folder / "pytorch_model.bin")
    check_whole(AutoModelForCausalLM, folder, "x")


def test_a_model_that_cannot_be_loaded_without_values_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compute(*_: object, **__: object) -> None:
        torch.zeros(1, device="meta").item()

    monkeypatch.setattr(Qwen3ForCausalLM, "from_pretrained", compute)
    check_whole(AutoModelForCausalLM, folder, "policy.path=x")
    assert (
        "policy.path=x: the worker checks whether the weights are those of its config.json: Tensor.item()"
        in caplog.text
    )


def test_a_language_model_is_no_reward_model(folder: Path) -> None:
    config = RewardConfig(manager={"name": "model", "path": str(folder)})
    for use in (check_reward, build_reward_manager):
        with pytest.raises(
            ConfigError, match=r": lacks 1 of the weights of a \S+, such as score.weight, which would be random"
        ):
            use(config)
    with pytest.raises(ConfigError, match=r"^x: lacks 1 of the weights"):
        load_whole(AutoModelForSequenceClassification, folder, "x")
    load_whole(AutoModelForSequenceClassification, folder, "x", unused=("score.",))
