"""Rows that are to be trained on and to be evaluated on are named before a process starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from language_jobs import language_config

from embodyflow.errors import ConfigError

Rows = Sequence[tuple[str, str]]
TRAIN: Rows = [(f"{i}+{i}=", str(2 * i)) for i in range(8)]
UNSEEN: Rows = [(f"{i}+1=", str(i + 1)) for i in range(2, 8)]


def write(file: Path, rows: Rows) -> str:
    file.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    return str(file)


def words(folder: Path, validation: Rows, *more: str) -> tuple[str, ...]:
    train, held_out = write(folder / "train.jsonl", TRAIN), write(folder / "held_out.jsonl", validation)
    return (
        *("data=gsm8k", "data.template='{question}'", "data.chat=false", "data.answer=whole", "data.demo=[]"),
        *(f"data.train=[{train}]", f"data.validation=[{held_out}]", "warm_start=null", *more),
    )


def test_splits_without_a_common_row_are_accepted(tmp_path: Path) -> None:
    language_config(*words(tmp_path, UNSEEN))
    language_config(*words(tmp_path, [*UNSEEN, ("3+3=", "7")]))  # the same words may have another answer


@pytest.mark.parametrize("asked", ["3+3=", " 3+3=\n"])
def test_a_row_to_train_on_and_to_evaluate_on_is_named_in_one_line(asked: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        language_config(*words(tmp_path, [*UNSEEN, (asked, "6"), ("0+0=", "0")]))
    assert str(caught.value) == (
        "data.train: 2 of 8 rows are also in data.validation, so an evaluation would measure what the policy was "
        f"shown: {tmp_path}/train.jsonl, row 1 is {tmp_path}/held_out.jsonl, row 8; "
        f"{tmp_path}/train.jsonl, row 4 is {tmp_path}/held_out.jsonl, row 7; "
        "remove them, or set data.shared_prompts=keep"
    )


def test_only_the_first_of_many_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.train: 8 of 8 rows .*row 3; and 5 more; remove them"):
        language_config(*words(tmp_path, TRAIN))


def test_a_demonstration_of_a_row_to_evaluate_on_is_named(tmp_path: Path) -> None:
    shown = write(tmp_path / "shown.jsonl", [("9+9=", "18"), ("5+1=", "6 ## 6")])
    with pytest.raises(ConfigError, match=r"^data.demo: 1 of 2 rows are also in .*shown.jsonl, row 2 is "):
        language_config(*words(tmp_path, UNSEEN, f"data.demo=[{shown}]", "data.response_column=answer"))


def test_rows_that_are_kept_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        language_config(*words(tmp_path, TRAIN, "data.shared_prompts=keep"))
    assert "data.train: 8 of 8 rows are also in data.validation: " in caplog.text
