"""Language jobs whose prompts come from files: checks before the start, and what reaches the reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from language_jobs import language_config

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import Columns, to_batch
from embodyflow.errors import ConfigError
from embodyflow.rollouts.language.language_rollout import LanguageRollout
from embodyflow.types import Batch

ROWS = [
    {
        "data_source": ("sums", "more/sums")[index % 2],
        "prompt": [{"role": "user", "content": f"1+{index}="}],
        "reward_model": {"ground_truth": str(index + 1)},
        "extra_info": {"index": index},
        "solution": str(index + 1),
        "completion": [{"role": "assistant", "content": str(index + 1)}],
    }
    for index in range(8)
]
FUNCTION = ("reward=custom", "reward.function.function='verl:borrowed_rewards:compute_score'")


def verl_config(folder: Path, *words: str, tokenizer: str = "chat_tokenizers:chatml") -> LanguageConfig:
    path = folder / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, ROWS)))
    splits = [f"data.{split}=[{folder}/*.jsonl]" for split in ("train", "validation", "demo")]
    reward = () if "reward=by_source" in words else FUNCTION
    start = ("data=verl", f"policy.tokenizer={tokenizer}", "data.response_column=completion")
    return language_config(*start, *reward, *splits, "data.shared_prompts=keep", *words)


def first_row(demos: Columns) -> Batch:
    columns = {name: values[:1] for name, values in demos.items() if name not in ("log_probs", "loss_mask")}
    return to_batch({**columns, "prompt_id": columns["uid"]})


def test_the_row_reaches_a_function_of_verl_and_turns_end_as_the_template_says(tmp_path: Path) -> None:
    config = verl_config(tmp_path)
    rollout = LanguageRollout(config, 0, 1)
    end = rollout.tokenizer.convert_tokens_to_ids("<end>")
    assert rollout._stop_tokens == tuple(sorted({rollout.tokenizer.eos_token_id, end}))
    demos = rollout.demonstrate()
    last = demos["response_length"] - 1
    assert {int(row[place, 0]) for row, place in zip(demos["action_tokens"], last, strict=True)} == {end}
    [sample] = rollout._samples(first_row(demos), "train")
    assert (sample.data_source, sample.ground_truth, sample.response) == ("sums", "1", "1")
    assert sample.messages == ROWS[0]["prompt"] and sample.row["extra_info"] == {"index": 0}
    assert sample.token_ids[-1] == end and len(sample.token_ids) == sample.num_tokens
    [score] = rollout._rewards.score([sample])
    assert (score.reward, score.parts["index"]) == (1.0, 0.0)
    rollout.close()


def test_keyword_arguments_of_the_chat_template_lengthen_the_prompts(tmp_path: Path) -> None:
    silent = verl_config(tmp_path, "data.chat_template_kwargs.thinking=false")
    assert silent.data.chat_template_kwargs == {"thinking": False}  # type: ignore[union-attr]
    lengths = []
    for config in (verl_config(tmp_path), silent):
        rollout = LanguageRollout(config, 0, 1)
        lengths.append(len(rollout._encode(rollout._prompts.prompt("train", 0))))
        rollout.close()
    assert lengths[1] > lengths[0]


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("chat_tokenizers:without_system", "leaves out; allowed are another policy.tokenizer, and prompts without sys"),
        ("chat_tokenizers:refusing_system", "refuses: System role not supported; allowed are another policy.tokenizer"),
    ],
)
def test_a_system_message_that_the_chat_template_does_not_write_is_refused(
    tokenizer: str, message: str, tmp_path: Path
) -> None:
    verl_config(tmp_path, tokenizer=tokenizer)
    assert verl_config(tmp_path, "data.system=Add").data.system == "Add"  # type: ignore[union-attr]
    line = rf"/rows.jsonl, row 1: the prompt has a system message, which the chat template of policy.* {message}"
    with pytest.raises(ConfigError, match=line):
        verl_config(tmp_path, "data.system=Add", tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("words", "tokenizer", "message"),
    [
        (
            [],
            "chat_tokenizers:without_template",
            r"^data.messages_column=prompt: the tokenizer of policy.tokenizer=chat_tokenizers:without_template has no "
            "chat template; allowed are",
        ),
        (
            ["data.messages_column=null", "data.template='{solution}'", "data.chat=true"],
            "chat_tokenizers:without_template",
            "^data.chat=true: the tokenizer of policy.tokenizer=.* has no chat template",
        ),
        (
            ["reward=by_source", "reward.function.functions={sums:{name:gsm8k}}"],
            "chat_tokenizers:chatml",
            "^reward.function.functions: has no function for data_source=more/sums; it has openai/gsm8k, sums; set one",
        ),
        (
            ["data.ground_truth_column=reward_model"],
            "chat_tokenizers:chatml",
            r"rows.jsonl, row 1: column reward_model",
        ),
    ],
)
def test_a_mistake_is_one_line_before_the_start(words: list[str], tokenizer: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        verl_config(tmp_path, *words, tokenizer=tokenizer)
    assert "\n" not in str(refusal.value)
