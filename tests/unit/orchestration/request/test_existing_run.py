"""A command line with ``if_exists=resume`` starts a run, and continues it when a scheduler gives it again."""

from pathlib import Path

import pytest

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.existing_run import continued
from embodyflow.orchestration.request.request import RunRequest, check, open_folder, parse_arguments
from embodyflow.record.run_folder import RunFolder

WORDS = ("env.max_steps=20", "evaluation.num_goals=2", "trainer.epochs=2", "iterations=3", "run_id=mine")


def again(root: Path, *changes: str) -> RunRequest:
    return continued(parse_arguments([f"run_root={root}", *WORDS, "if_exists=resume", *changes]))


def started(root: Path, *, commits: int) -> RunConfig:
    request = again(root)
    config = check(request)
    folder = open_folder(request, config)
    for iteration in range(commits):
        folder.checkpoints.begin(iteration)
        folder.checkpoints.commit(iteration, {}, keep=2)
    return config


def test_a_run_that_does_not_exist_starts(tmp_path: Path) -> None:
    request = again(tmp_path)
    assert (request.run_id, request.resume) == ("mine", None)
    assert "if_exists" not in request.parameters()  # flows do not know it


def test_a_run_that_has_committed_is_resumed(tmp_path: Path) -> None:
    config = started(tmp_path, commits=2)
    request = again(tmp_path)
    assert request.resume == "mine"
    assert check(request) == config
    longer = again(tmp_path, "iterations=5", "trainer.schedule_iterations=3")
    assert check(longer).iterations == 5
    assert check(longer).trainer.schedule_iterations == 3


def test_a_run_that_has_committed_nothing_starts_anew(tmp_path: Path) -> None:
    config = started(tmp_path, commits=0)
    request = again(tmp_path)
    assert request.resume is None and not config.run_dir.exists()
    assert check(request) == config


def test_a_run_at_work_is_left_alone(tmp_path: Path) -> None:
    config = started(tmp_path, commits=0)
    with RunFolder(config.run_dir).locked(), pytest.raises(ConfigError, match=r"process \d+ is at work on this run"):
        again(tmp_path)
    assert config.run_dir.exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("seed=4", "seed=4: the run has 0; a resumed run keeps its configuration"),
        ("trainer.epochs=3", "trainer.epochs=3: the run has 2; a resumed run keeps its configuration"),
        ("env.tasks=[push-v3]", "env.tasks=['push-v3']: the run has ['reach-v3']; a resumed run keeps its"),
        ("resume=mine", "if_exists=resume: must be left out with resume=mine"),
        ("if_exists=replace", "if_exists=replace: must be refuse or resume"),
    ],
)
def test_a_command_for_another_run_is_refused(tmp_path: Path, change: str, line: str) -> None:
    started(tmp_path, commits=2)
    with pytest.raises(ConfigError) as caught:
        again(tmp_path, change)
    assert str(caught.value).startswith(line)


def test_a_run_without_a_name_cannot_be_found_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^if_exists=resume: needs run_id=<name>"):
        continued(parse_arguments([f"run_root={tmp_path}", "if_exists=resume"]))


def test_a_run_that_exists_is_refused_by_default(tmp_path: Path) -> None:
    started(tmp_path, commits=2)
    for words in ([], ["if_exists=refuse"]):
        with pytest.raises(ConfigError, match=r"exists; choose another or resume=mine"):
            check(continued(parse_arguments([f"run_root={tmp_path}", *WORDS, *words])))
