"""Prompts from files: columns, templates, chats, answers, and messages about invalid rows."""

import json
import math

import pytest
from pydantic import ValidationError

from embodyflow.errors import ConfigError
from embodyflow.prompts.arithmetic import build_tokenizer
from embodyflow.prompts.files.prompt_files import RowPrompts
from embodyflow.prompts.prompt_config import RowsConfig
from embodyflow.prompts.prompt_registry import build_prompt_source

ROWS = [{"question": f"{i}+{i}=", "answer": f"twice\n#### {2 * i}", "extra": [i]} for i in range(10)]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def write(folder, rows, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(*train, **settings):
    defaults = {"template": "{question}", "ground_truth_column": "answer"}
    return RowsConfig(data_source="sums", train=train, **{**defaults, **settings})


def test_a_row_becomes_a_prompt(tmp_path, tokenizer):
    path = write(tmp_path, ROWS)
    chosen = config(path, demo=(path,), template="{question} {{{question}}}", response_column="answer", answer="gsm8k")
    source = build_prompt_source(chosen, tokenizer, 50)
    prompt = source.prompt("train", 3)
    assert (prompt.prompt_id, prompt.text, prompt.messages) == (3, "3+3= {3+3=}", None)
    assert (prompt.ground_truth, prompt.data_source) == ("6", "sums")
    assert source.demonstration("demo", 3) == "twice\n#### 6"
    assert [source.num_prompts(split) for split in ("train", "validation", "demo")] == [10, 0, 10]
    for split, index in (("train", 10), ("train", -1), ("validation", 0)):
        with pytest.raises(IndexError, match=rf"the {split} prompts"):
            source.prompt(split, index)


def test_a_template_or_a_column_becomes_a_chat(tmp_path, tokenizer):
    path = write(tmp_path, [{**row, "turns": [{"role": "user", "content": row["question"]}]} for row in ROWS])
    asked = {"role": "user", "content": "1+1="}
    for settings in ({"chat": True}, {"template": None, "messages_column": "turns"}):
        assert RowPrompts(config(path, **settings), tokenizer, 50).prompt("train", 1).messages == [asked]
        with_system = RowPrompts(config(path, system="Add.", **settings), tokenizer, 50).prompt("train", 1)
        assert with_system.messages == [{"role": "system", "content": "Add."}, asked]
        assert with_system.text is None


def test_ranks_share_the_rows_and_agree_on_their_numbers(tmp_path, tokenizer):
    paths = [write(tmp_path, ROWS[:3], "a.jsonl"), write(tmp_path, ROWS[3:], "b.jsonl")]
    whole = RowPrompts(config(*paths), tokenizer, 50)
    parts = [RowPrompts(config(*paths), tokenizer, 50, rank, 3) for rank in range(3)]
    prompts = [part.prompt("train", i) for part in parts for i in range(part.num_prompts("train"))]
    assert [part.num_prompts("train") for part in parts] == [3, 3, 4]
    assert prompts == [whole.prompt("train", i) for i in range(10)]


def test_prompts_that_are_too_long_are_named_or_skipped_and_counted(tmp_path, tokenizer):
    path = write(tmp_path, [*ROWS[:2], {**ROWS[2], "question": "100+100="}, *ROWS[3:]])
    with pytest.raises(ConfigError, match=rf"^{path}, row 3: prompt 2 of sums has 9 tokens; .* or data.too_long=skip$"):
        RowPrompts(config(path), tokenizer, 8)
    source = RowPrompts(config(path, too_long="skip"), tokenizer, 8)
    assert source.num_skipped == {"train": 1, "validation": 0, "demo": 0}
    assert [source.prompt("train", i).prompt_id for i in range(source.num_prompts("train"))] == [0, 1, *range(3, 10)]
    with pytest.raises(ConfigError, match=r"^data.train: all 10 prompts are too long; .* rollout.max_prompt_tokens="):
        RowPrompts(config(path, too_long="skip"), tokenizer, 2)


@pytest.mark.parametrize("column", ["question", "answer"])
def test_a_number_that_is_missing_is_no_text(column, tmp_path):
    """JSON of Python, and parquet of pandas, hold NaN for it."""
    path = write(tmp_path, [*ROWS[:2], {**ROWS[2], column: math.nan}])
    with pytest.raises(ConfigError, match=rf"^{path}, row 3: column {column} is (nan; allowed is text|empty)$"):
        RowPrompts(config(path), None, 50)


def test_a_prompt_without_tokens_is_refused(tmp_path):
    """Some tokenizers add no tokens to a text."""
    path = write(tmp_path, [*ROWS[:2], {**ROWS[2], "question": "?"}])
    with pytest.raises(ConfigError, match=rf"^{path}, row 3: the prompt has no tokens; needs at least one$"):
        RowPrompts(config(path), lambda text: {"input_ids": [1] * len(text.strip("?"))}, 8)


def test_an_optional_column_may_be_empty_and_the_assistant_may_only_call_a_tool(tmp_path, tokenizer):
    path = write(tmp_path, [{**row, "input": ""} for row in ROWS])
    assert RowPrompts(config(path, template="{question}{input}"), tokenizer, 50).prompt("train", 1).text == "1+1="
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    turns = [{"role": "user", "content": "1+1="}, call, {"role": "tool", "content": ""}]
    path = write(tmp_path, [{**row, "turns": turns} for row in ROWS], "turns.jsonl")
    prompts = RowPrompts(config(path, template=None, messages_column="turns"), None, 50)
    assert prompts.prompt("train", 0).messages == turns


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_name_that_occurs_twice_in_a_row_is_refused(name, tmp_path):
    line = '{"question": "1+1=", "question": "2+2=", "answer": "#### 2"}'
    path = tmp_path / name
    path.write_text(line if name.endswith("l") else f"[{line}]")
    with pytest.raises(ConfigError, match=rf"^{path}.*: is not JSON: the name 'question' occurs twice in an object$"):
        RowPrompts(config(str(path)), None, 50)


@pytest.mark.parametrize(
    ("row", "settings", "complaint"),
    [
        ({"answer": "#### "}, {"answer": "gsm8k"}, "column answer has no answer after ####"),
        ({"answer": "12"}, {"answer": "gsm8k"}, "column answer has no answer after ####"),
        ({"answer": None}, {}, "column answer is empty"),
        ({"question": None}, {}, "column question is None; allowed is text"),
        ({"question": ["a"]}, {}, r"column question is \['a'\]; allowed is text"),
        ({"question": " \n"}, {"template": "Add: {question}"}, "column question is empty, so the prompt asks nothing"),
        *(
            ({"extra": [message]}, {"template": None, "messages_column": "extra"}, complaint)
            for message, complaint in (
                ({"role": "usr", "content": "a"}, "column extra has a message with the role 'usr'; allowed are system"),
                ({"role": "user", "content": None}, "column extra has a message of user with the content None; allow"),
                ({"role": "user", "content": " "}, "column extra has a message of user with the content ' '; allowed"),
                ({"role": "system", "content": 5}, "column extra has a message of system with the content 5; allowed"),
                ({"role": "assistant", "content": None}, "column extra has a message of assistant with the content No"),
            )
        ),
        ({"extra": []}, {"template": None, "messages_column": "extra"}, "column extra is not a chat"),
        ({"extra": [{"role": "user"}]}, {"template": None, "messages_column": "extra"}, "column extra is not a chat"),
    ],
)
def test_a_malformed_row_is_named(row, settings, complaint, tmp_path, tokenizer):
    chats = [{**good, "extra": [{"role": "user", "content": "a"}]} for good in ROWS]
    path = write(tmp_path, [*chats[:6], {**chats[6], **row}, *chats[7:]])
    with pytest.raises(ConfigError, match=rf"^{path}, row 7: {complaint}"):
        RowPrompts(config(path, **settings), tokenizer, 50)


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (None, "is None; allowed is text"),
        (["a"], r"is \['a'\]; allowed is text"),
        ("", "is empty"),
        (" \n", "is empty"),
    ],
)
def test_an_invalid_demonstration_is_named(response, complaint, tmp_path, tokenizer):
    whole = [{**row, "extra": "a"} for row in ROWS]
    path = write(tmp_path, [*whole[:6], {**whole[6], "extra": response}, *whole[7:]])
    with pytest.raises(ConfigError, match=rf"^{path}, row 7: column extra {complaint}"):
        RowPrompts(config(path, demo=(path,), response_column="extra"), tokenizer, 50)
    source = RowPrompts(config(path, response_column="extra"), tokenizer, 50)  # training prompts need no response
    with pytest.raises(ConfigError, match=r"^data.train: has no demonstrations; .* data.demo$"):
        source.demonstration("train", 6)


def test_files_and_rows_are_checked_without_a_tokenizer(tmp_path):
    path = write(tmp_path, ROWS)
    assert build_prompt_source(config(path), None, 1).num_prompts("train") == 10
    with pytest.raises(ConfigError, match=r"rows.jsonl:1: has no column prompt; it has question, answer, extra"):
        build_prompt_source(config(path, template="{prompt}"), None, 1)
    with pytest.raises(ConfigError, match=r"none.jsonl: cannot be read"):
        build_prompt_source(config(path, validation=(str(tmp_path / "none.jsonl"),)), None, 1)
    with pytest.raises(ConfigError, match=r"empty.jsonl: 0 rows for 1 ranks"):
        build_prompt_source(config(write(tmp_path, [], "empty.jsonl")), None, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "no column"}, "names no column"),
        ({"template": "{question"}, "is not a valid template"),
        ({"template": None}, "exactly one of template and messages_column must be set"),
        ({"messages_column": "turns"}, "exactly one of template and messages_column must be set"),
        ({"system": "Add."}, "system needs chat=true or messages_column"),
        ({"demo": ("a.jsonl",)}, "response_column must be set with demo files"),
    ],
)
def test_inconsistent_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        config("a.jsonl", **settings)
