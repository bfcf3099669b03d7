"""What an evaluation is asked for: a run or an export, and what does not fit either."""

from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.run_folder import RunFolder
from flows.evaluation_request import check_evaluation, open_evaluation, parse_evaluation
from flows.request import RunRequest, check

SMALL = ("env.max_steps=20", "evaluation.num_goals=4")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with commits of iterations 0 and 2."""
    config = check(RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL)))
    folder = RunFolder.create(config)
    for iteration in (0, 2):
        folder.new_checkpoint(iteration)
        folder.commit_checkpoint(iteration, {}, keep=2)
    return folder.path


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
    config, _ = ask(f"policy={run}")
    folder = open_evaluation(config)
    again, _ = ask(f"policy={run}")
    assert again == config and open_evaluation(again).path == folder.path
    with pytest.raises(ConfigError, match=r"run_id=evaluate-mine-000002: .* holds another run or evaluation"):
        ask(f"policy={run}", "evaluation.num_goals=8")


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
