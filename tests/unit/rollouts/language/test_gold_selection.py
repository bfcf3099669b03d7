"""Golds of language jobs are checked before a process starts, or left out and counted."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from language_jobs import language_config

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.rollouts.language.gold_selection import select_gradable
from embodyflow.rollouts.language.language_rollout import LanguageRollout

ANSWERS = ["2", "4", "There are 6 of them", "8", r"\frac{1", "12", "14", "16", "18", "20"]


def words(folder: Path, *overrides: str, reward: str = "math", answers: list[object] = ANSWERS) -> tuple[str, ...]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"question": f"{i}+{i}=", "answer": a}) + "\n" for i, a in enumerate(answers)))
    return (
        *("data=gsm8k", "data.template='{question}'", "data.chat=false", "data.answer=whole", f"reward={reward}"),
        *(f"data.{split}=[{file}]" for split in ("train", "validation")),
        *("data.shared_prompts=keep", "data.demo=[]", "warm_start=null", *overrides),
    )


def test_rows_that_cannot_be_graded_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        language_config(*words(tmp_path))
    [line] = str(caught.value).splitlines()
    assert line.startswith(
        "data.train: reward.function.name=math cannot grade 2 of 10 golds; mend them or set data.skip_ungradable=true "
        f"to leave them out: {tmp_path}/rows.jsonl, row 3: answer='There are 6 of them' is prose"
    )
    assert f"{tmp_path}/rows.jsonl, row 5: answer='\\\\frac{{1' does not match itself" in line


def test_a_struct_column_is_refused_with_its_nested_column(tmp_path: Path) -> None:
    rows = [{"question": f"{i}", "reward_model": {"style": "rule", "ground_truth": f"{i}"}} for i in range(9)]
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    files = [f"data.{split}=[{file}]" for split in ("train", "validation")]
    columns = ("data.ground_truth_column=reward_model", "data.response_column=null")
    for reward in ("math", "exact_match", "gsm8k"):
        with pytest.raises(
            ConfigError, match=r"rows.parquet, row 1: .*data\.ground_truth_column=reward_model\.ground_truth"
        ):
            language_config(*words(tmp_path, *columns, *files, reward=reward))


def test_skipped_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    config = language_config(*words(tmp_path, "data.skip_ungradable=true"))
    source, left_out = select_gradable(config, build_prompt_source(config.data, None, 50))
    assert left_out == {"train": 2, "validation": 2}
    assert [source.prompt("train", index).prompt_id for index in range(8)] == [0, 1, 3, 5, 6, 7, 8, 9]
    assert source.place("train", 2) == f"{tmp_path}/rows.jsonl, row 4"
    with pytest.raises(IndexError, match="allowed are 0 to 7"):
        source.prompt("train", 8)
    with pytest.raises(ConfigError, match=r"evaluation\.num_prompts=9: allowed are 1 to 8"):
        language_config(*words(tmp_path, "data.skip_ungradable=true", "evaluation.num_prompts=9"))


def test_a_rollout_reports_how_many_rows_it_left_out(tmp_path: Path) -> None:
    answers = ["2", "4", "six", "8", "10", "12"]
    config = language_config(*words(tmp_path, "data.skip_ungradable=true", reward="gsm8k", answers=answers))
    rollout = LanguageRollout(config, 0, 1)
    assert rollout._left_out == {"train": 1, "validation": 1}
    rollout.close()


def test_a_reward_without_golds_does_not_skip(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data.skip_ungradable=true: needs golds .* reward.function.name=code"):
        language_config(*words(tmp_path, "data.skip_ungradable=true", reward="code"))


def test_golds_of_demonstrations_are_graded_if_a_warm_start_is_measured_on_them(tmp_path: Path) -> None:
    good = words(tmp_path, answers=[str(2 * i) for i in range(10)])
    (tmp_path / "demos.jsonl").write_text("".join(json.dumps({"question": "?", "answer": a}) + "\n" for a in ANSWERS))
    demos = (*good[:-2], f"data.demo=[{tmp_path}/demos.jsonl]", "rollout.max_response_tokens=28")
    until = "warm_start.until={success:0.5,max_steps:9,num_held_out:2}"
    assert language_config(*demos).warm_start is not None
    with pytest.raises(ConfigError, match=r"^data.demo: reward.function.name=math cannot grade 2 of 10 golds"):
        language_config(*demos, until)
