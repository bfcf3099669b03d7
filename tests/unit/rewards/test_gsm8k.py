"""All of GSM8K through prompts, epochs and verifier."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from embodyflow.errors import ConfigError, RewardError
from embodyflow.prompts.epochs import shuffled_rows
from embodyflow.prompts.files.prompt_files import RowPrompts
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.rewards.functions.written_numbers import parse_number
from embodyflow.rewards.interface import Sample
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager

ROOT = Path(__file__).parents[3]
GSM8K = Path(os.environ.get("EMBODYFLOW_SHARED", ROOT.parent / "shared")) / "data" / "gsm8k"

pytestmark = pytest.mark.skipif(
    not GSM8K.is_dir(), reason=f"needs {GSM8K} (EMBODYFLOW_SHARED names the folder with data/gsm8k)"
)


def shipped(path):
    return yaml.safe_load((ROOT / "configs" / path).read_text())


@pytest.fixture(scope="module")
def tokenizer():
    """Build a fast tokenizer of words, all unknown, which is enough to count them."""
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", chat_template=template)


def rows_config(**files):
    return RowsConfig(**{**shipped("data/gsm8k.yaml"), **files})


@pytest.fixture(scope="module")
def source(tokenizer):
    both = tuple(str(GSM8K / f"{split}.jsonl") for split in ("train", "test"))
    return RowPrompts(rows_config(train=(), validation=(), demo=both), tokenizer, 300)


@pytest.fixture(scope="module")
def manager():
    return build_reward_manager(RewardConfig(**shipped("reward/gsm8k.yaml")))


class Answered:
    """The demo split, which is both files, as samples whose responses are the worked answers."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return self.source.num_prompts("demo")

    def __getitem__(self, index):
        prompt, response = self.source.prompt("demo", index), self.source.demonstration("demo", index)
        [message] = prompt.messages
        return Sample(prompt.prompt_id, message["content"], response, prompt.ground_truth, "gsm8k", 9, True)


def test_every_gold_answer_scores_one_and_a_perturbed_one_zero(source, manager):
    answered = Answered(source)
    assert len(answered) == 8792
    samples = [answered[row] for row in shuffled_rows(0, len(answered), 0, len(answered)).tolist()]
    assert sorted(sample.uid for sample in samples) == list(range(8792))  # an epoch, each row once
    assert [score.uid for score, gold in zip(samples, manager.score(samples), strict=True) if gold.reward != 1.0] == []
    for perturb in (
        lambda truth: f"#### {parse_number(truth) + 1}",
        lambda truth: f"#### {-parse_number(truth) or 1}",
        lambda truth: f"#### {truth}0",
        lambda truth: f"#### {truth} or {parse_number(truth) + 1}",
        lambda truth: f"The answer is {truth}",
        lambda truth: "",
    ):
        perturbed = [replace(sample, response=perturb(sample.ground_truth)) for sample in samples]
        scores = manager.score(perturbed)
        wrong = [sample.uid for sample, score in zip(perturbed, scores, strict=True) if score.reward != 0.0]
        assert wrong == [
            sample.uid for sample in perturbed if sample.ground_truth == "0" and sample.response == "#### 00"
        ]


def test_other_spellings_of_the_gold_answer_score_one(source, manager):
    samples = [Answered(source)[index] for index in range(8792)]
    for spell in (
        lambda number: f"#### ${number:,}.00",
        lambda number: f"It was 7.\n####{number} clips.\n",
        lambda number: f"#### 7\n#### {number:,}",
    ):
        spelled = [replace(sample, response=spell(int(parse_number(sample.ground_truth)))) for sample in samples]
        assert {score.reward for score in manager.score(spelled)} == {1.0}


def test_malformed_rows_are_named(tokenizer, manager, tmp_path):
    lines = (GSM8K / "test.jsonl").read_text().splitlines()
    path = tmp_path / "test.jsonl"
    for number, broken in ((17, lines[16][:-5]), (1319, "[]"), (400, json.dumps({"question": "?", "answer": "42"}))):
        path.write_text("\n".join([*lines[: number - 1], broken, *lines[number:]]))
        with pytest.raises(ConfigError, match=rf"^{path}(:|, row ){number}: "):
            RowPrompts(rows_config(train=(str(path),), validation=(), demo=()), tokenizer, 300)
    with pytest.raises(RewardError, match=r"^reward of row 7: .* ground_truth='forty-two' is not a number"):
        manager.score([Sample(7, "?", "#### 42", "forty-two", "gsm8k", 9, True)])
