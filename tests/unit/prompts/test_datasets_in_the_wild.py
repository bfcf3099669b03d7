"""Rows as other projects publish them: verl's parquet, ShareGPT conversations, messages, prompts and completions."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from embodyflow.errors import ConfigError
from embodyflow.prompts.files.file_patterns import expand_patterns
from embodyflow.prompts.files.prompt_files import RowPrompts
from embodyflow.prompts.prompt_config import RowsConfig

VERL = {
    "train": ("data/*.parquet",),
    "data_source_column": "data_source",
    "messages_column": "prompt",
    "ground_truth_column": "reward_model.ground_truth",
}
ASKED = [{"role": "user", "content": "What is 30+4?"}]
SHAREGPT = [{"from": "human", "value": "What is 30+4?"}, {"from": "gpt", "value": "It is 34."}]


def verl_row(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "data_source": ("openai/gsm8k", "lighteval/MATH")[index % 2],
        "prompt": [{"content": f"What is {index}+4?", "role": "user"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 4)},
        "extra_info": {"split": "train", "index": index},
        **changes,
    }


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def write_json(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def verl(path: str, **changes: Any) -> RowPrompts:
    return RowPrompts(RowsConfig(**{**VERL, "train": (path,), **changes}), None, 50)


def demos(path: str, **settings: Any) -> RowPrompts:
    defaults = {"data_source": "sums", "train": (), "demo": (path,), "ground_truth_column": "answer"}
    return RowPrompts(RowsConfig(**{**defaults, **settings}), None, 50)


def test_the_parquet_of_verl_is_read_as_it_comes(tmp_path: Path) -> None:
    source = verl(write_parquet(tmp_path / "train.parquet", [verl_row(index) for index in range(30, 33)]))
    prompt = source.prompt("train", 1)
    assert prompt.messages == [{"content": "What is 31+4?", "role": "user"}] and prompt.text is None
    assert (prompt.ground_truth, prompt.data_source) == ("35", "lighteval/MATH")
    assert prompt.row == {key: value for key, value in verl_row(31).items() if key != "prompt"}


def test_reward_columns_choose_what_reaches_the_reward_also_by_dots(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet", [verl_row(30)])
    assert verl(path, reward_columns=("ability", "extra_info.index")).prompt("train", 0).row == {
        "ability": "math",
        "extra_info.index": 30,
    }


@pytest.mark.parametrize(
    ("changes", "settings", "complaint"),
    [
        ({}, {"ground_truth_column": "reward_model"}, r"column reward_model is \{.*'35'.*\}; set data.ground_truth_"),
        ({}, {"ground_truth_column": "reward_model.truth"}, "column reward_model has no field truth; it has"),
        ({}, {"ground_truth_column": "ability.truth"}, "column ability is 'math', which has no field truth"),
        ({"data_source": ""}, {}, "column data_source is ''; allowed is the name of a dataset"),
        ({"prompt": []}, {}, r"column prompt is not a chat; allowed is a list of messages with role and content, or"),
    ],
)
def test_a_malformed_row_is_named(
    changes: dict[str, Any], settings: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    first = verl_row(30) if changes or "reward_model" not in settings.values() else verl_row(31)
    path = write_json(tmp_path / "train.json", [first, verl_row(31, **changes)])
    where = "row 1" if settings else "row 2"
    with pytest.raises(ConfigError, match=rf"^{path}, {where}: {complaint}"):
        verl(path, **settings)


def test_a_pattern_stands_for_the_files_that_match_in_order(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "[1].json"):
        write_json(tmp_path / name, [verl_row(ord(name[0]))])
    assert expand_patterns("data.train", [f"{tmp_path}/?.json"]) == (f"{tmp_path}/a.json", f"{tmp_path}/b.json")
    assert expand_patterns("data.train", [f"{tmp_path}/[1].json"]) == (f"{tmp_path}/[1].json",)
    (tmp_path / "deep").mkdir()
    write_json(tmp_path / "deep" / "c.json", [verl_row(1)])
    assert verl(f"{tmp_path}/**/c.json").num_prompts("train") == 1
    with pytest.raises(ConfigError, match=r"^data.train=.*/x\*.json: matches no file; allowed are paths, and patterns"):
        verl(f"{tmp_path}/x*.json")


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"conversations": SHAREGPT}, {"messages_column": "conversations"}),
        ({"messages": [*ASKED, {"role": "assistant", "content": "It is 34."}]}, {"messages_column": "messages"}),
        (
            {"prompt": ASKED, "completion": [{"role": "assistant", "content": "It is 34."}]},
            {"messages_column": "prompt", "response_column": "completion"},
        ),
        (
            {"prompt": "What is 30+4?", "completion": "It is 34."},
            {"template": "{prompt}", "chat": True, "response_column": "completion"},
        ),
        ({"conversations": SHAREGPT}, {"template": "{q}", "demo_messages_column": "conversations"}),
    ],
    ids=["ShareGPT", "messages", "prompt and completion", "texts", "another column than the prompts"],
)
def test_demonstrations_come_from_chats(row: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    source = demos(write_json(tmp_path / "demo.json", [row]), **settings)
    prompt = source.prompt("demo", 0)
    assert (prompt.messages, prompt.ground_truth) == (ASKED, None)
    assert source.demonstration("demo", 0) == "It is 34."


def test_a_chat_keeps_its_own_system_message(tmp_path: Path) -> None:
    own = [{"from": "system", "value": "Be brief."}, *SHAREGPT]
    path = write_json(tmp_path / "demo.json", [{"conversations": own}, {"conversations": SHAREGPT}])
    source = demos(path, messages_column="conversations", system="Add.")
    contents = [[turn["content"] for turn in source.prompt("demo", index).messages or []] for index in range(2)]
    assert contents == [["Be brief.", "What is 30+4?"], ["Add.", "What is 30+4?"]]


@pytest.mark.parametrize(
    ("turns", "complaint"),
    [
        (SHAREGPT[:1], "ends with a message of user; needs an answer to imitate"),
        (SHAREGPT[1:], "has no message before the answer; needs one of the user"),
        ([{"from": "alien", "value": "?"}], "has a message from 'alien'; allowed are system, human"),
        ([SHAREGPT[0], {"from": "gpt", "value": " "}], "is empty"),
        ("34", "is not a chat"),
    ],
)
def test_a_conversation_without_an_answer_is_named(turns: Any, complaint: str, tmp_path: Path) -> None:
    path = write_json(tmp_path / "demo.json", [{"conversations": SHAREGPT}, {"conversations": turns}])
    for settings in (
        {"messages_column": "conversations"},
        {"template": "{q}", "demo_messages_column": "conversations"},
    ):
        with pytest.raises(ConfigError, match=rf"^{path}, row 2: column conversations {complaint}"):
            demos(path, **settings)


def test_demonstrations_need_no_ground_truth_and_no_data_source(tmp_path: Path) -> None:
    train = write_parquet(tmp_path / "train.parquet", [verl_row(30)])
    for row, settings in (
        ({"prompt": ASKED, "completion": "It is 34."}, {"response_column": "completion"}),
        ({"conversations": SHAREGPT}, {"demo_messages_column": "conversations"}),
    ):
        source = verl(train, demo=(write_json(tmp_path / "demo.json", [row]),), **settings)
        assert source.demonstration("demo", 0) == "It is 34."
        assert (source.prompt("demo", 0).messages, source.prompt("demo", 0).row) == (ASKED, {})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (r"{question} Put it in \boxed{}.", r"has \{\}, which names no column; write \{\{\}\} for literal braces"),
        (r"{question} \frac{1}{2}", r"has \{1\}, which names no column; write \{\{1\}\} for literal braces"),
        ('{question} {"a": 3}', r'has \{"a": 3\}, which names no column; write \{\{"a": 3\}\} for literal braces'),
        (r"{question} \boxed{", r"is not a valid template: .*; write \{\{ and \}\} for literal braces"),
        (r"{question} }", r"is not a valid template: .*; write \{\{ and \}\} for literal braces"),
    ],
)
def test_a_stray_brace_says_how_to_write_it(template: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RowsConfig(data_source="sums", train=("a.jsonl",), template=template, ground_truth_column="answer")


def test_a_template_takes_nested_columns_and_literal_braces(tmp_path: Path) -> None:
    path = write_json(tmp_path / "train.json", [{"extra": {"question": "1+{x}="}, "answer": 3}])
    template = r"{extra.question} \boxed{{}}"
    config = RowsConfig(data_source="sums", train=(path,), template=template, ground_truth_column="answer")
    prompt = RowPrompts(config, None, 50).prompt("train", 0)
    assert (prompt.text, prompt.ground_truth) == (r"1+{x}= \boxed{}", 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data_source": None}, "exactly one of data_source and data_source_column must be set"),
        ({"data_source_column": "a"}, "exactly one of data_source and data_source_column must be set"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs needs chat=true or messages_col"),
        ({"demo": ("a.jsonl",)}, "response_column must be set with demo files, or demo_messages_column"),
    ],
)
def test_inconsistent_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    defaults = {"data_source": "sums", "train": ("a.jsonl",), "template": "{q}", "ground_truth_column": "answer"}
    with pytest.raises(ValidationError, match=message):
        RowsConfig(**{**defaults, **settings})
