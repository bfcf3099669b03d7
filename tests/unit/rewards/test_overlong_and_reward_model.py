"""Managers that need torch: the overlong penalty and the reward model."""

import shutil
from dataclasses import replace

import pytest
import torch
from other_device import NAME, other_device
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from embodyflow.errors import ConfigError, RewardError
from embodyflow.prompts.arithmetic import build_tokenizer
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager, check_reward

RIGHT = Sample(1, "27+95=", "## 122", "122", "test", 3, True)


def test_overlong_responses_lose_reward_and_stay_correct():
    manager = build_reward_manager(
        RewardConfig(
            function={"name": "exact_match"},
            manager={"name": "dapo", "max_tokens": 100, "overlong": {"buffer": 40, "penalty": 2.0}},
        )
    )
    lengths = (3, 60, 70, 100, 120)
    scores = manager.score([replace(RIGHT, num_tokens=length) for length in lengths])
    assert [score.reward for score in scores] == [1.0, 1.0, 0.5, -1.0, -1.0]
    assert [score.parts["overlong"] for score in scores] == [0.0, 0.0, -0.5, -2.0, -2.0]
    assert all(score.correct and score.parts["answered"] == 1 for score in scores)
    assert manager.score([]) == []
    manager.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a reward model with random weights, with the tokenizer of sums."""
    folder = tmp_path_factory.mktemp("reward_model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=8, num_labels=1, pad_token_id=0, **sizes
    )
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    return folder


def reward_model(folder, **settings):
    return build_reward_manager(RewardConfig(manager={"name": "model", "path": str(folder), **settings}))


def test_a_reward_model_scores_each_response_by_itself(folder):
    samples = [replace(RIGHT, uid=n, response="1+1=02," * n) for n in range(1, 6)]
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        expected = [
            model(**tokenizer(sample.prompt + sample.response, return_tensors="pt")).logits.item() for sample in samples
        ]
    threshold = sorted(expected)[2]
    scores = reward_model(folder, batch_size=2, correct_above=threshold - 1e-4).score(samples)
    assert [score.reward for score in scores] == pytest.approx(expected, abs=1e-5)
    assert sum(score.correct for score in scores) == 3
    assert reward_model(folder).score([]) == []


def test_on_another_device_scores_are_the_same(folder):
    samples = [replace(RIGHT, uid=n, response="1+1=02," * n) for n in range(1, 4)]
    with other_device():
        scores = reward_model(folder, device=NAME).score(samples)
    expected = [score.reward for score in reward_model(folder).score(samples)]
    assert [score.reward for score in scores] == pytest.approx(expected, abs=1e-5)


def test_the_template_forms_the_input(folder):
    odd = replace(RIGHT, response="{prompt}")  # braces in a response are not filled in
    [plain] = reward_model(folder).score([replace(odd, prompt="", response="1={prompt}=1")])
    [filled] = reward_model(folder, template="1={response}=1{prompt}").score([replace(odd, prompt="")])
    assert filled == plain


def test_an_input_that_cannot_be_scored_is_an_error(folder, tmp_path):
    with pytest.raises(
        RewardError, match=r"^reward of row 1: .* input of the reward model has 13 tokens; allowed are max_tokens=12$"
    ):
        reward_model(folder, max_tokens=12).score([RIGHT, replace(RIGHT, uid=2)])
    broken = tmp_path / "broken"
    model = Qwen3ForSequenceClassification.from_pretrained(folder)
    torch.nn.init.constant_(model.score.weight, float("nan"))
    model.save_pretrained(broken)
    build_tokenizer().save_pretrained(broken)
    with pytest.raises(RewardError, match=r"^reward of row 1: .* returned reward=nan"):
        reward_model(broken).score([RIGHT])


def test_an_invalid_model_is_named(folder, tmp_path):
    with pytest.raises(ConfigError, match=rf"^reward.manager.path={tmp_path / 'none'}: has no config.json; allowed"):
        reward_model(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"^manager.path=no model: cannot be loaded: "):
        reward_model("no model")  # no name of the hub, which is not asked
    config = Qwen3Config.from_pretrained(folder, num_labels=3)
    Qwen3ForSequenceClassification(config).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has 3 outputs; allowed is one$"):
        reward_model(tmp_path)
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    scored = {"name": "dapo", "max_tokens": 999, "scores": {"name": "model", "path": str(tmp_path / "cut")}}
    with pytest.raises(
        ConfigError, match=r"^reward.manager.scores.path=.*cut: model.safetensors is cut short: 1 of its"
    ):
        check_reward(RewardConfig(manager=scored))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "cut" / name).unlink()
    weights.write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"cut: has no tokenizer, such as tokenizer.json; use a folder that has one"):
        check_reward(RewardConfig(manager=scored))
    assert Score(1.0, True) == Score(1.0, True, {})
