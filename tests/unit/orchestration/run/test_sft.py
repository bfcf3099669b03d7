"""A warm start is repeated if anything changed that its weights depend on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from language_jobs import language_config
from language_models import save_model

from embodyflow.config import RunConfig
from embodyflow.config.robots.environment import AdapterConfig
from embodyflow.orchestration.run.warm_start import warm_start_key

ROWS = [{"question": f"What is {number}?", "answer": f"It is {number}."} for number in range(8)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a model and demonstrations."""
    save_model(tmp_path / "model", tied=True)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def key(files: Path, *overrides: str) -> str:
    rows = str(files / "rows.jsonl")
    data = (
        *("data=gsm8k", "data.template='{question}'", "data.chat=false", "data.answer=whole"),
        *(f"data.{split}=[{rows}]" for split in ("train", "validation", "demo")),
        "data.shared_prompts=keep",
    )
    model = ("policy.scratch=null", f"policy.path={files / 'model'}", "rollout.max_response_tokens=16")
    return warm_start_key(language_config(*data, "data.response_column=answer", *model, *overrides))


def test_edited_demonstrations_change_the_key(files: Path) -> None:
    before = key(files)
    assert key(files) == before
    rows = files / "rows.jsonl"
    rows.write_text(rows.read_text().replace("It is 3.", "It is 4."))  # as long as before
    assert key(files) != before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "more/added.json"])
def test_another_model_in_the_same_folder_changes_the_key(name: str, files: Path) -> None:
    before = key(files)
    file = files / "model" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(file.read_bytes() + b"\n" if file.exists() else b"{}")
    assert key(files) != before


def test_a_limit_that_skips_demonstrations_changes_the_key(files: Path) -> None:
    longer = "rollout.max_prompt_tokens=17"
    assert key(files, "data.too_long=skip") != key(files, "data.too_long=skip", longer)
    assert key(files) == key(files, longer), "too long is an error here, so no demonstration is skipped"


def test_an_edited_scene_changes_the_key(tiny_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    scene, config = tmp_path / "scene.xml", tiny_config()
    env = config.env.model_copy(update={"kwargs": {"xml": str(scene)}})  # type: ignore[attr-defined]
    config = config.model_copy(update={"env": env})
    keys = []
    for content in ("<mujoco/>", "<mujoco></mujoco>"):
        scene.write_text(content)
        keys.append(warm_start_key(config))
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("env", "edited"),
    [
        ({"adapter": AdapterConfig(success_info="done", expert="their_expert:act")}, "their_expert.py"),
        ({"adapter": AdapterConfig(success_info="done", wrappers=("their_expert:wrap",))}, "their_expert.py"),
        ({"id": "their_envs:their/Env-v0"}, "their_envs/scene.py"),
    ],
    ids=["expert", "wrapper", "environment"],
)
def test_an_edited_expert_or_environment_changes_the_key(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Any, edited: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_envs").mkdir()
    for name in ("their_expert.py", "their_envs/__init__.py", "their_envs/scene.py"):
        (tmp_path / name).write_text("speed = 1\n")
    config = tiny_config()
    config = config.model_copy(update={"env": config.env.model_copy(update=env)})  # type: ignore[attr-defined]
    before = warm_start_key(config)
    assert warm_start_key(config) == before
    (tmp_path / edited).write_text("speed = 2\n")
    assert warm_start_key(config) != before


def test_rollouts_are_part_of_the_key_if_they_decide_when_a_warm_start_ends() -> None:
    hotter, until = "rollout.temperature=1.3", "warm_start.until={success:0.3,max_steps:9,num_held_out:4}"
    plain, measured = warm_start_key(language_config()), warm_start_key(language_config(until))
    assert plain == warm_start_key(language_config(hotter))
    assert len({plain, measured, warm_start_key(language_config(until, hotter))}) == 3
    another = warm_start_key(language_config(until.replace("0.3", "0.4")))
    assert another != measured
