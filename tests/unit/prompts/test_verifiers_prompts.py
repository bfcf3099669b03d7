"""Tasks of environments of verifiers as rows. A stand-in takes the package's place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from vf_stand_in import stand_in
from waiting import eventually

from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import VerifiersTasksConfig
from embodyflow.prompts.prompt_registry import build_prompt_source
from embodyflow.prompts.prompts import PromptSource

TASKS = [{"idx": number} for number in range(5)]


def config(python: str, **values: Any) -> VerifiersTasksConfig:
    sizes = {"num_validation": 2, **{key: values.pop(key) for key in ("num_train",) if key in values}}
    return VerifiersTasksConfig.model_validate({"environment": {"taskset": "any", "python": python, **values}, **sizes})


def source(python: str, **values: Any) -> PromptSource:
    return build_prompt_source(config(python, **values), None, 1)


def tasks_of(source: PromptSource, split: Any) -> list[int]:
    return [source.prompt(split, index).row["task"]["idx"] for index in range(source.num_prompts(split))]


def test_the_first_tasks_validate_and_the_rest_trains(tmp_path: Path) -> None:
    rows = source(stand_in(tmp_path, *TASKS))
    assert {split: tasks_of(rows, split) for split in ("validation", "demo", "train")} == {
        "validation": [0, 1],
        "demo": [],
        "train": [2, 3, 4],
    }
    assert tasks_of(source(stand_in(tmp_path, *TASKS), num_train=1), "train") == [2]
    row = rows.prompt("train", 1)
    assert (row.prompt_id, row.ground_truth, row.data_source) == (3, "408", "any")
    assert row.messages == [{"role": "user", "content": "12*34="}]
    assert rows.place("train", 1) == "any, task 3"
    with pytest.raises(IndexError, match="index=3: allowed are 0 to 2, the train tasks"):
        rows.prompt("train", 3)
    with pytest.raises(ConfigError, match=r"^data=verifiers: has no demonstrations; set warm_start=null$"):
        rows.demonstration_turns("demo", 0)


def test_too_few_tasks_are_one_line(tmp_path: Path) -> None:
    python = stand_in(tmp_path, *TASKS)
    with pytest.raises(ConfigError, match=r"data.num_validation=2, data.num_train=4: taskset any has 5 tasks"):
        source(python, num_train=4)
    with pytest.raises(ConfigError, match="taskset any has 2 tasks"):
        source(stand_in(tmp_path, *TASKS[:2]), settings={"other": 1})


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    """The real script runs, in a Python without verifiers."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport runpy, sys\nsys.modules['verifiers'] = None\nsys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python.chmod(0o755)
    with pytest.raises(
        ConfigError, match=r"^rollout.agent.verifiers=any: .*pip install 'embodyflow\[verifiers\]'$"
    ) as e:
        source(str(python))
    assert "\n" not in str(e.value)


def test_a_process_that_fails_or_hangs_is_one_line(tmp_path: Path) -> None:
    failing = stand_in(tmp_path, before="sys.exit('no memory')")
    with pytest.raises(ConfigError, match=r"^rollout.agent.verifiers=any: its process has failed: no memory$"):
        source(failing)
    marker = tmp_path / "pid"
    lines = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(ConfigError, match=r"its tasks were not loaded within start_timeout=5 seconds"):
        source(stand_in(tmp_path, before=lines), start_timeout=5.0)
    assert eventually(lambda: not Path(f"/proc/{marker.read_text()}").exists(), 10)


def test_the_process_gets_no_keys_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_KEY", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "MY_SETTING"):
        monkeypatch.setenv(name, "value")
    shown = "import os, sys; sys.exit(' '.join(name for name in os.environ if os.environ[name] == 'value'))"
    with pytest.raises(ConfigError, match=r"its process has failed: MY_SETTING$"):
        source(stand_in(tmp_path, before=shown))


def test_no_such_python_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^rollout.agent.verifiers.python: no-such is no command"):
        source("no-such")
