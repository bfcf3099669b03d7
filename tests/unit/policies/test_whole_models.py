"""A checkpoint that lacks a weight is refused, where transformers would draw the weight at random."""

from pathlib import Path

import pytest
from language_models import save_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from embodyflow.config.generation import HFConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.modeling_causal_lm import build_model
from embodyflow.policies.pretrained.whole_models import load_whole
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager

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


def test_a_language_model_is_no_reward_model(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r": lacks 1 of the weights of a \S+, such as score.weight, which would be random"
    ):
        build_reward_manager(RewardConfig(manager={"name": "model", "path": str(folder)}))
    with pytest.raises(ConfigError, match=r"^x: lacks 1 of the weights"):
        load_whole(AutoModelForSequenceClassification, folder, "x")
    load_whole(AutoModelForSequenceClassification, folder, "x", unused=("score.",))
