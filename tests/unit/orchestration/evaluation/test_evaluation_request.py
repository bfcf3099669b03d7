"""Evaluation requests: for a run or an export, continued evaluations, and mistakes."""

import asyncio
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import picture_room
import pytest

from embodyflow.config.robots.control import ControlConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.evaluation import evaluation_request, evaluation_run
from embodyflow.orchestration.evaluation.evaluation_request import (
    EvaluationRequest,
    check_evaluation,
    open_evaluation,
    parse_evaluation,
)
from embodyflow.orchestration.evaluation.pinned_checkpoint import pinned_run, unpin_checkpoint
from embodyflow.orchestration.request import command_line
from embodyflow.orchestration.request.request import RunRequest, check
from embodyflow.record.run_folder import RunFolder
from flows import evaluate

SMALL = ("env.max_steps=20", "evaluation.num_goals=4")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with commits of iterations 0 and 2."""
    config = check(RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL)))
    folder = RunFolder.create(config)
    for iteration in (0, 2):
        commit(folder, iteration)
    return folder.path


def commit(folder: RunFolder, iteration: int) -> None:
    (folder.checkpoints.begin(iteration) / "weights").write_text(f"of iteration {iteration}")
    folder.checkpoints.commit(iteration, {}, keep=1)


def ask(*words: str):
    return check_evaluation(parse_evaluation(words))


def test_a_run_is_evaluated_with_its_own_configuration_and_overrides(run: Path) -> None:
    config, policy = ask(f"policy={run}", "evaluation.num_goals=8")
    assert (config.env.max_steps, config.evaluation.num_goals) == (20, 8)
    assert (config.run_id, config.run_dir.parent) == ("evaluate-mine-000002", run.parent)
    assert (policy.path, policy.iteration) == (run, 2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("evaluation.num_goals=[1", "evaluation.num_goals=[1: is not in Hydra's grammar"),
        ("evaluation.num_goals=2,3", "evaluation.num_goals=2,3: has several values; allowed is one"),
        ("~evaluation.num_goals=2", "~evaluation.num_goals=2: removes a key"),
    ],
)
def test_a_word_outside_the_grammar_is_one_line(run: Path, word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_evaluation(EvaluationRequest(str(run), overrides=(word,)))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_an_export_is_evaluated_in_an_experiment(run: Path) -> None:
    (run / "policy").mkdir()
    (run / "policy" / "model.safetensors").write_text("")
    config, policy = ask(f"policy={run}/policy", "run_id=of-export", f"run_root={run.parent}", *SMALL)
    assert (config.experiment, config.run_id, policy.iteration) == ("embodied", "of-export", None)


def test_a_control_run_is_evaluated_on_episodes_of_its_own_number(tmp_path: Path) -> None:
    config = check(RunRequest("reacher", run_id="arm", overrides=(f"run_root={tmp_path}",), flow="ppo"))
    assert config.evaluation is None
    commit(RunFolder.create(config), 0)
    config, policy = ask(f"policy={tmp_path}/arm")
    assert isinstance(config, ControlConfig) and config.evaluation is not None
    assert (config.evaluation.num_episodes, config.run_id, policy.iteration) == (10, "evaluate-arm-000000", 0)
    config, _ = ask(f"policy={tmp_path}/arm", "evaluation.num_episodes=25", "run_id=on_25")
    assert isinstance(config, ControlConfig) and config.evaluation is not None
    assert config.evaluation.num_episodes == 25
    open_evaluation(config, policy)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "model.safetensors").write_text("")
    config, policy = ask(f"policy={tmp_path}/export", "experiment=reacher", f"run_root={tmp_path}")
    assert (config.experiment, policy.iteration) == ("reacher", None) and config.evaluation is not None
    with pytest.raises(ConfigError, match=r"^evaluation.num_episodes=4: "):
        ask(f"policy={tmp_path}/arm", "evaluation.num_episodes=4")


def test_the_same_evaluation_continues_and_a_different_one_is_refused(run: Path) -> None:
    config, policy = ask(f"policy={run}")
    folder = open_evaluation(config, policy)
    again, _ = ask(f"policy={run}")
    assert again == config and open_evaluation(again, policy).path == folder.path
    with pytest.raises(ConfigError, match=r"run_id=evaluate-mine-000002: .* holds another run or evaluation"):
        ask(f"policy={run}", "evaluation.num_goals=8")


def test_a_run_and_its_evaluation_that_name_a_moved_module_continue(tmp_path: Path) -> None:
    words = (f"run_root={tmp_path}", *SMALL, *picture_room.WORDS, "policy=tiny_smolvla")
    commit(RunFolder.create(check(RunRequest(run_id="mine", overrides=words))), 0)
    for name in ("mine", "evaluate-mine-000000"):
        config, policy = ask(f"policy={tmp_path}/mine")
        folder = open_evaluation(config, policy)
        written = tmp_path / name / "config.yaml"
        old = written.read_text().replace("embodyflow.policies.embodied.flow_vla", "embodyflow.policies.flow_vla")
        assert old != written.read_text()
        written.write_text(old)
    again, _ = ask(f"policy={tmp_path}/mine")
    assert again == config and open_evaluation(again, policy).path == folder.path


def weights(folder: RunFolder, iteration: int) -> str:
    pinned_run(folder).checkpoints.verify(iteration)
    return (pinned_run(folder).checkpoints.folder(iteration) / "weights").read_text()


@pytest.mark.parametrize("run_id", [(), ("run_id=other",)])
@pytest.mark.parametrize("linked", [True, False])
def test_a_run_that_continues_removes_nothing_from_its_evaluation(
    run: Path, monkeypatch: pytest.MonkeyPatch, run_id: tuple[str, ...], linked: bool
) -> None:
    if not linked:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
    config, policy = ask(f"policy={run}", *run_id)
    folder = open_evaluation(config, policy)
    commit(RunFolder(run), 4)
    assert RunFolder(run).checkpoints.committed() == [0, 4]
    again, same = ask(f"policy={run}", f"run_id={config.run_id}")  # as the command asks its flow
    assert (again, same) == (config, policy) and policy.iteration == 2
    assert open_evaluation(again, same).path == folder.path
    assert [weights(folder, iteration) for iteration in (0, 2)] == ["of iteration 0", "of iteration 2"]
    if not run_id:
        newer, policy = ask(f"policy={run}")
        assert (newer.run_id, policy.iteration) == ("evaluate-mine-000004", 4)
    unpin_checkpoint(folder)  # as a complete evaluation does; its checkpoint is gone now
    with pytest.raises(
        ConfigError, match=f"policy={run}: the checkpoint of iteration 2 is gone; choose another run_id"
    ):
        open_evaluation(again, same)


class OpenedError(Exception):
    """Raised with an evaluation's folder and iteration where workers would start."""


def test_a_retried_flow_run_keeps_its_first_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_opened(config: Any, policy: Any) -> None:
        folder = open_evaluation(config, policy)
        raise OpenedError(folder.path, policy.iteration)

    monkeypatch.setattr(evaluation_run, "open_evaluation", raise_opened)

    def attempt(flow_run_id: str, name: str, run_count: int) -> tuple[Path, int]:
        flow_run = SimpleNamespace(id=flow_run_id, name=name, run_count=run_count)
        monkeypatch.setattr(evaluation_request, "flow_run", flow_run)
        with pytest.raises(OpenedError) as opened:
            asyncio.run(evaluation_run.run_evaluation(EvaluationRequest(str(run))))
        return opened.value.args

    first = attempt("0123456789abcdef", "vivid-otter", 1)
    assert first == (run.parent / "vivid-otter", 2)
    commit(RunFolder(run), 4)
    assert attempt("0123456789abcdef", "vivid-otter", 2) == first
    assert attempt("fedcba9876543210", "vivid-otter", 1) == (run.parent / "vivid-otter-fedcba98", 4)


def test_a_stopped_evaluation_names_the_command_that_continues_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(flow: Any, parameters: Any, run_dir: Path, if_stopped: Any, **_: Any) -> None:
        raise SystemExit(if_stopped())

    monkeypatch.setattr(command_line, "run_flow", stop)
    monkeypatch.setattr(sys, "argv", ["evaluate", f"policy={run}"])
    with pytest.raises(SystemExit, match=r"^stopped; continue with the same command and run_id=evaluate-mine-000002$"):
        evaluate.main()


def test_a_checkpoint_that_is_being_removed_is_not_pinned(run: Path) -> None:
    (RunFolder(run).checkpoints.folder(2) / "weights").unlink()
    config, policy = ask(f"policy={run}", "run_id=other")
    with pytest.raises(ConfigError, match="the checkpoint of iteration 2 is gone"):
        open_evaluation(config, policy)
    commit(RunFolder(run), 4)
    config, policy = ask(f"policy={run}", "run_id=other")
    assert weights(open_evaluation(config, policy), 4) == "of iteration 4"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ((), "policy: must be set to the folder of a run"),
        (("mine",), "mine: must be of the form key=value, such as policy=runs/mine"),
        (
            ("policy={root}/none",),
            "policy={root}/none: must be the folder of a run, with config.yaml, or of an exported",
        ),
        (
            ("policy={root}/mine", "experiment=libero"),
            "experiment=libero: the run {root}/mine has experiment=embodied;",
        ),
        (("policy={root}/mine", "evaluation.num_goal=3"), "evaluation.num_goal: no such key; did you mean"),
        (("policy={root}/mine", "evaluation.num_goals=999"), "evaluation.num_goals=999: allowed are 1 to 256"),
        (("policy={root}/mine", "env.tasks=[raech-v3]"), "env.tasks: 'raech-v3' is unknown"),
        (("policy={root}/mine", "run_id=.."), "run_id='..': must be the name of a folder, "),
        (("policy={root}/mine", "run_id="), "run_id='': must be the name of a folder, "),
        (("policy={root}/my run",), "run_id='evaluate-my run-000002': must be the name of a folder, ^[A-Za-z0-9]"),
        (
            ("policy={root}/mine", "trainer.epochs=3"),
            "trainer.epochs=3: has no effect on an evaluation, which trains n",
        ),
        (("policy={root}/mine", "iterations=3"), "iterations=3: has no effect on an evaluation, which trains nothing"),
        (
            ("policy={root}/mine", "rollout.num_groups=4"),
            "rollout.num_groups=4: has no effect on an evaluation, which pl",
        ),
        (
            ("policy={root}/mine", "trainer.iterations_per_commit=2"),
            "trainer.iterations_per_commit=2: has no effect on",
        ),
        (("policy={root}/new",), "policy={root}/new: the run has no committed checkpoint"),
        (("policy={root}/math",), "policy={root}/math: belongs to job=language; allowed are embodied and control"),
    ],
)
def test_a_mistake_is_one_line(run: Path, words: tuple[str, ...], answer: str) -> None:
    RunFolder.create(check(RunRequest(run_id="new", overrides=(f"run_root={run.parent}", *SMALL))))
    if any("math" in word for word in words):
        language = RunFolder.create(check(RunRequest("math", run_id="math", overrides=(f"run_root={run.parent}",))))
        language.checkpoints.begin(0)
        language.checkpoints.commit(0, {}, keep=2)
    shutil.copytree(run, run.with_name("my run"))
    with pytest.raises(ConfigError) as refusal:
        ask(*(word.format(root=run.parent) for word in words))
    assert str(refusal.value).startswith(answer.format(root=run.parent))
    assert len(str(refusal.value).splitlines()) == 1
