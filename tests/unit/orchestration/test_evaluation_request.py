"""What an evaluation is asked for: a run or an export, and what does not fit either."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.evaluation import evaluation_request, evaluation_run
from embodyflow.orchestration.evaluation.evaluation_request import (
    EvaluationRequest,
    check_evaluation,
    open_evaluation,
    parse_evaluation,
)
from embodyflow.orchestration.evaluation.kept_checkpoint import drop, kept
from embodyflow.orchestration.request import command_line
from embodyflow.orchestration.request.request import RunRequest, check
from embodyflow.record.run_folder import RunFolder
from flows import evaluate

SMALL = ("env.max_steps=20", "evaluation.num_goals=4")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with commits of iterations 0 and 2."""
    config = check(RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL)))
    folder = RunFolder.create(config)
    for iteration in (0, 2):
        commit(folder, iteration)
    return folder.path


def commit(folder: RunFolder, iteration: int) -> None:
    (folder.new_checkpoint(iteration) / "weights").write_text(f"of iteration {iteration}")
    folder.commit_checkpoint(iteration, {}, keep=1)


def ask(*words: str):
    return check_evaluation(parse_evaluation(words))


def test_a_run_is_evaluated_as_it_was_trained_but_for_what_is_asked(run: Path) -> None:
    config, policy = ask(f"policy={run}", "evaluation.num_goals=8")
    assert (config.env.max_steps, config.evaluation.num_goals) == (20, 8)
    assert (config.run_id, config.run_dir.parent) == ("evaluate-mine-000002", run.parent)
    assert (policy.path, policy.iteration) == (run, 2)


def test_an_export_is_evaluated_in_an_experiment(run: Path) -> None:
    (run / "policy").mkdir()
    (run / "policy" / "model.safetensors").write_text("")
    config, policy = ask(f"policy={run}/policy", "run_id=of-export", f"run_root={run.parent}", *SMALL)
    assert (config.experiment, config.run_id, policy.iteration) == ("embodied", "of-export", None)


def test_the_same_again_goes_on_and_something_else_is_refused(run: Path) -> None:
    config, policy = ask(f"policy={run}")
    folder = open_evaluation(config, policy)
    again, _ = ask(f"policy={run}")
    assert again == config and open_evaluation(again, policy).path == folder.path
    with pytest.raises(ConfigError, match=r"run_id=evaluate-mine-000002: .* holds another run or evaluation"):
        ask(f"policy={run}", "evaluation.num_goals=8")


def weights(folder: RunFolder, iteration: int) -> str:
    kept(folder).verify_checkpoint(iteration)
    return (kept(folder).checkpoint(iteration) / "weights").read_text()


@pytest.mark.parametrize("run_id", [(), ("run_id=other",)])
@pytest.mark.parametrize("linked", [True, False])
def test_a_run_that_goes_on_takes_nothing_from_its_evaluation(
    run: Path, monkeypatch: pytest.MonkeyPatch, run_id: tuple[str, ...], linked: bool
) -> None:
    if not linked:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
    config, policy = ask(f"policy={run}", *run_id)
    folder = open_evaluation(config, policy)
    commit(RunFolder(run), 4)
    assert RunFolder(run).committed() == [0, 4]
    again, same = ask(f"policy={run}", f"run_id={config.run_id}")  # what the flow is asked that the command starts
    assert (again, same) == (config, policy) and policy.iteration == 2
    assert open_evaluation(again, same).path == folder.path
    assert [weights(folder, iteration) for iteration in (0, 2)] == ["of iteration 0", "of iteration 2"]
    if not run_id:
        newer, policy = ask(f"policy={run}")
        assert (newer.run_id, policy.iteration) == ("evaluate-mine-000004", 4)
    drop(folder)  # complete; asked for once more, its checkpoint is gone
    with pytest.raises(
        ConfigError, match=f"policy={run}: the checkpoint of iteration 2 is gone; choose another run_id"
    ):
        open_evaluation(again, same)


class OpenedError(Exception):
    """Of an evaluation, with its folder, where workers would start."""


def test_a_retried_flow_run_goes_on_with_the_checkpoint_it_began_with(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_instead(config: Any, policy: Any) -> None:
        folder = open_evaluation(config, policy)
        raise OpenedError(folder.path, policy.iteration)

    monkeypatch.setattr(evaluation_run, "open_evaluation", opened_instead)

    def attempt(flow_run_id: str) -> tuple[Path, int]:
        monkeypatch.setattr(evaluation_request, "flow_run", SimpleNamespace(id=flow_run_id))
        with pytest.raises(OpenedError) as opened:
            asyncio.run(evaluation_run.evaluate_as_asked(EvaluationRequest(str(run))))
        return opened.value.args

    first = attempt("0123456789abcdef")
    assert first == (run.parent / "evaluate-mine-01234567", 2)
    commit(RunFolder(run), 4)
    assert attempt("0123456789abcdef") == first
    assert attempt("fedcba9876543210") == (run.parent / "evaluate-mine-fedcba98", 4)


def test_who_stops_an_evaluation_is_told_what_goes_on_with_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(flow: Any, parameters: Any, run_dir: Path, if_stopped: Any) -> None:
        raise SystemExit(if_stopped())

    monkeypatch.setattr(command_line, "run_flow", stop)
    monkeypatch.setattr(sys, "argv", ["evaluate", f"policy={run}"])
    with pytest.raises(SystemExit, match=r"^stopped; continue with the same command and run_id=evaluate-mine-000002$"):
        evaluate.main()


def test_a_checkpoint_that_is_being_removed_is_not_taken(run: Path) -> None:
    (RunFolder(run).checkpoint(2) / "weights").unlink()
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
        (("policy={root}/none",), "policy={root}/none: holds neither config.yaml, as runs do, nor model.safetensors"),
        (("policy={root}/mine", "experiment=libero"), "experiment=libero: the run {root}/mine is of embodied; leave"),
        (("policy={root}/mine", "evaluation.num_goal=3"), "evaluation.num_goal: no such key; did you mean"),
        (("policy={root}/mine", "evaluation.num_goals=999"), "evaluation.num_goals=999: allowed are 1 to 256"),
        (("policy={root}/mine", "env.tasks=[raech-v3]"), "env.tasks: 'raech-v3' is unknown"),
        (("policy={root}/new",), "policy={root}/new: the run has no committed checkpoint"),
        (("policy={root}/math",), "policy={root}/math: is of job=language; allowed is embodied"),
    ],
)
def test_a_mistake_is_one_line(run: Path, words: tuple[str, ...], answer: str) -> None:
    RunFolder.create(check(RunRequest(run_id="new", overrides=(f"run_root={run.parent}", *SMALL))))
    if any("math" in word for word in words):
        language = RunFolder.create(check(RunRequest("math", run_id="math", overrides=(f"run_root={run.parent}",))))
        language.new_checkpoint(0)
        language.commit_checkpoint(0, {}, keep=2)
    with pytest.raises(ConfigError) as refusal:
        ask(*(word.format(root=run.parent) for word in words))
    assert str(refusal.value).startswith(answer.format(root=run.parent))
    assert len(str(refusal.value).splitlines()) == 1
