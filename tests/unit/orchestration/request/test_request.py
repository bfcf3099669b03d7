"""Requests of training runs: parsing, checking, resuming and retries of a flow run."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import prefect.runtime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from unrestorable_envs import GlobalSteps

from embodyflow.config import RunConfig
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import (
    Iterations,
    Resume,
    RunId,
    RunRequest,
    Seed,
    bind_to_flow_run,
    check,
    open_folder,
    parse_arguments,
    stretched_schedule,
)
from embodyflow.orchestration.request.run_name import free_name
from embodyflow.orchestration.request.unread_words import refuse_unread
from embodyflow.record.run_folder import RunFolder

SMALL = ("env.max_steps=20", "evaluation.num_goals=2", "trainer.epochs=2")


def committed_run(
    run_root: Path, run_id: str = "mine", iterations: int = 3, done: int = 1, words: tuple[str, ...] = ()
) -> RunConfig:
    request = RunRequest(iterations=iterations, run_id=run_id, overrides=(f"run_root={run_root}", *SMALL, *words))
    config = check(request)
    folder = open_folder(request, config)
    for iteration in range(done + 1):
        folder.checkpoints.begin(iteration)
        folder.checkpoints.commit(iteration, {}, keep=2)
    return config


def test_words_of_the_command_line_become_a_request() -> None:
    words = ["iterations=5", "trainer.epochs=2", "seed=3", "run_id=mine", "experiment=embodied", "env.tasks=[a=b]"]
    assert parse_arguments(words) == RunRequest(
        experiment="embodied", iterations=5, seed=3, run_id="mine", overrides=("trainer.epochs=2", "env.tasks=[a=b]")
    )
    assert parse_arguments([]) == RunRequest()
    assert parse_arguments(["resume=mine"], "grpo").resume == "mine"
    assert parse_arguments(["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("word", ["embodied", "--iterations", "=5", "iterations=many", "seed=", "seed=1.0"])
def test_a_malformed_word_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(word)}: must be"):
        parse_arguments([word])


@given(st.integers(1, 99), st.integers(0, 2**31 - 1))
def test_named_parameters_win_over_overrides(iterations: int, seed: int) -> None:
    request = RunRequest(iterations=iterations, seed=seed, overrides=("seed=1",))
    named = [f"iterations={iterations}", f"seed={seed}"]
    assert request.hydra_overrides() == ["experiment=embodied", "algorithm=grpo", "seed=1", *named]


def test_a_request_becomes_parameters_of_its_flow() -> None:
    request = parse_arguments(["seed=3", "trainer.epochs=2"], "ppo")
    assert request.flow == "ppo"
    assert request.parameters() == {
        "experiment": "embodied",
        "iterations": None,
        "seed": 3,
        "run_id": None,
        "resume": None,
        "algorithm": None,
        "overrides": ["trainer.epochs=2"],
    }


def test_checking_a_request_writes_nothing(tmp_path: Path) -> None:
    request = RunRequest(iterations=2, seed=5, run_id="mine", overrides=(f"run_root={tmp_path}/runs", *SMALL))
    config = check(request)
    assert (config.iterations, config.seed, config.run_id, config.trainer.epochs) == (2, 5, "mine", 2)
    assert config.run_dir == tmp_path / "runs" / "mine"
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_run_id_gets_one(tmp_path: Path) -> None:
    config = check(RunRequest(seed=5, overrides=(f"run_root={tmp_path}",)))
    assert re.fullmatch(r"embodied-seed5-\d{8}-\d{6}", str(config.run_id))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(Iterations, 0), (Iterations, "many"), (Seed, -1), (Seed, 2**31), (RunId, "a/b"), (RunId, ""), (RunId, ".hidden")],
)
def test_prefect_refuses_an_invalid_parameter_at_submission(kind: object, wrong: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(wrong)


def test_a_resumed_run_keeps_its_configuration_and_may_be_extended(tmp_path: Path) -> None:
    config = committed_run(tmp_path)
    where = (f"run_root={tmp_path}",)
    assert check(RunRequest(resume="mine", overrides=where)) == config
    longer = check(RunRequest(resume="mine", iterations=9, overrides=where))
    assert longer == config.model_copy(update={"iterations": 9})
    assert open_folder(RunRequest(resume="mine", overrides=where), longer).checkpoints.committed() == [0, 1]


POINT = (
    *("env.id=unrestorable_envs:Restored-v0", "env.tasks=[go]", "env.adapter.success_info=success", "env.max_steps=20"),
    *("policy.state_dim=null", "policy.action_dim=null", "warm_start=null"),
)


def test_a_resumed_run_is_refused_if_its_environment_no_longer_restores_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_run(tmp_path, words=POINT)
    request = RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    check(request)
    monkeypatch.setattr(gym.spec("Restored-v0"), "entry_point", GlobalSteps)  # as another version of the package
    with pytest.raises(ConfigError) as caught:
        check(request)
    assert str(caught.value).startswith(
        "resume=mine: env.id=unrestorable_envs:Restored-v0: reset(seed=0) does not restore goal 0 of task 'go': after "
    )
    check(RunRequest(resume="mine", iterations=1, overrides=request.overrides))  # nothing is left to play


def test_a_resumed_run_adds_what_is_no_longer_restored_to_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_run(tmp_path, words=(*POINT, "env.allow_unrestorable=true"))
    request = RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    assert open_folder(request, check(request)).unrestorable() == {}
    monkeypatch.setattr(gym.spec("Restored-v0"), "entry_point", GlobalSteps)
    found = open_folder(request, check(request)).unrestorable()
    assert found.keys() == {"go"} and found["go"].startswith("env.id=unrestorable_envs:Restored-v0: ")
    monkeypatch.undo()
    assert open_folder(request, check(request)).unrestorable() == found  # earlier iterations were played with it


def test_a_resumed_run_says_that_it_stretches_the_schedule_and_may_keep_the_old_one(tmp_path: Path) -> None:
    where = (f"run_root={tmp_path}",)
    words = ("trainer.schedule.name=linear", "trainer.learning_rate=0.001")
    committed_run(tmp_path, iterations=6, done=6, words=words)
    kept = "trainer.schedule_iterations="
    longer = check(RunRequest(resume="mine", iterations=12, overrides=where))
    assert stretched_schedule(RunFolder(longer.run_dir), longer) == (
        "iterations=12 stretches trainer.schedule.name=linear from 6 iterations: iteration 7 has the learning rate "
        "0.0005; trainer.schedule_iterations=6 keeps the old schedule, 0.000167"
    )
    same = check(RunRequest(resume="mine", iterations=12, overrides=(*where, f"{kept}6")))
    assert (same.iterations, same.trainer.schedule_iterations) == (12, 6)
    assert stretched_schedule(RunFolder(same.run_dir), same) is None
    other = check(RunRequest(resume="mine", iterations=12, overrides=(*where, f"{kept}8")))
    assert str(stretched_schedule(RunFolder(other.run_dir), other)).startswith(
        "trainer.schedule_iterations=8 stretches"
    )


def test_a_resumed_run_says_that_it_stretches_the_annealing_of_the_kl_coefficient(tmp_path: Path) -> None:
    words = ("algorithm.kl.coef=0.4", "algorithm.kl.final_coef=0.1")
    committed_run(tmp_path, iterations=2, done=2, words=words)
    longer = check(RunRequest(resume="mine", iterations=4, overrides=(f"run_root={tmp_path}",)))
    assert stretched_schedule(RunFolder(longer.run_dir), longer) == (
        "iterations=4 stretches algorithm.kl.final_coef from 2 iterations: iteration 3 has the KL coefficient 0.2; "
        "trainer.schedule_iterations=2 keeps the old schedule, 0.1"
    )
    kept = (f"run_root={tmp_path}", "trainer.schedule_iterations=2")
    same = check(RunRequest(resume="mine", iterations=4, overrides=kept))
    assert stretched_schedule(RunFolder(same.run_dir), same) is None


def test_a_constant_rate_is_not_stretched(tmp_path: Path) -> None:
    committed_run(tmp_path, done=2)
    longer = check(RunRequest(resume="mine", iterations=9, overrides=(f"run_root={tmp_path}",)))
    assert stretched_schedule(RunFolder(longer.run_dir), longer) is None


def test_a_moved_run_folder_is_resumed_at_its_new_place(tmp_path: Path) -> None:
    committed_run(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    assert (
        check(RunRequest(resume="mine", overrides=(f"run_root={tmp_path}/new",))).run_dir == tmp_path / "new" / "mine"
    )


@pytest.mark.parametrize("take", [shutil.copytree, shutil.move], ids=["copied", "renamed"])
def test_a_copied_or_renamed_run_is_the_folder_that_was_named(tmp_path: Path, take: Callable[..., object]) -> None:
    """The folder's config.yaml holds the old run_id."""
    config = committed_run(tmp_path)
    take(config.run_dir, tmp_path / "other")
    request = RunRequest(resume="other", iterations=5, overrides=(f"run_root={tmp_path}",))
    resumed = check(request)
    assert resumed == config.model_copy(update={"run_id": "other", "iterations": 5})
    folder = open_folder(request, resumed)
    assert folder.path == tmp_path / "other" and stretched_schedule(folder, resumed) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "keeps its configuration"),
        ({"run_id": "other"}, "keeps its configuration"),
        ({"overrides": ("trainer.epochs=5",)}, "keeps its configuration"),
        ({"iterations": 1}, "iterations=1: must be at least 2"),
        (
            {"experiment": "push"},
            "experiment=push: resume=mine has experiment=embodied; leave experiment out",
        ),
    ],
)
def test_a_resumed_run_refuses_changes(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    committed_run(tmp_path, done=2)
    overrides = (f"run_root={tmp_path}", *changes.pop("overrides", ()))  # type: ignore[misc]
    with pytest.raises(ConfigError, match=message):
        check(RunRequest(resume="mine", overrides=overrides, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../old/mine", "..", "/old/mine", "mine/", "mine\n", ".mine", "old/../mine", ""])
def test_a_path_is_not_the_name_of_a_run_to_resume(tmp_path: Path, name: str) -> None:
    committed_run(tmp_path / "old")
    where = f"run_root={tmp_path}/runs"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'resume={name!r}')}: must be the name of a run"):
        check(RunRequest(resume=name, overrides=(where,)))
    with pytest.raises(ConfigError, match="must be the name of a run"):
        parse_arguments([f"resume={name}", where])
    with pytest.raises(ValidationError):
        TypeAdapter(Resume).validate_python(name)


def test_a_running_run_is_not_resumed(tmp_path: Path) -> None:
    config = committed_run(tmp_path)
    request = RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    with RunFolder(config.run_dir).locked(), pytest.raises(ConfigError, match=r"process \d+ is at work on this run"):
        check(request)
    assert check(request) == config


def test_a_run_is_not_resumed_without_disk_space_for_its_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = committed_run(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    with pytest.raises(ConfigError, match=r"^resume=mine: .*checkpoints: a checkpoint takes 0 MB and 0 MB are free"):
        check(RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",)))
    assert RunFolder(config.run_dir).checkpoints.committed() == [0, 1]


def test_the_remains_of_a_killed_commit_count_as_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = committed_run(tmp_path)
    folder, request = RunFolder(config.run_dir), RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    half = folder.checkpoints.begin(2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    (half / "state").write_bytes(bytes(10))  # less than a checkpoint, whose digests alone are larger
    with pytest.raises(ConfigError, match="a checkpoint takes"):
        check(request)
    (half / "state").write_bytes(bytes(10_000))
    assert check(request) == config


def test_a_run_with_all_iterations_done_needs_no_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = committed_run(tmp_path, iterations=1, done=1)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    request = RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",))
    assert check(request) == config  # its evaluation may be missing
    with pytest.raises(ConfigError, match="a checkpoint takes"):
        check(RunRequest(resume="mine", iterations=2, overrides=request.overrides))


@pytest.mark.parametrize("name", ["2026", "1e5", "0123", "true", "null", "2026-11-23"])
def test_a_run_id_stays_a_string_even_if_it_reads_as_another_type(tmp_path: Path, name: str) -> None:
    assert check(parse_arguments([f"run_id={name}", f"run_root={tmp_path}"])).run_dir == tmp_path / name


def test_a_damaged_configuration_is_reported_in_one_line(tmp_path: Path) -> None:
    config = committed_run(tmp_path)
    path = config.run_dir / "config.yaml"
    path.write_text(path.read_text().replace("epochs: 2", "epochs: two"))
    with pytest.raises(ConfigError) as caught:
        check(RunRequest(resume="mine", overrides=(f"run_root={tmp_path}",)))
    expected = "resume=mine: its config.yaml is not valid in this version: trainer.epochs='two': input should be"
    assert str(caught.value).startswith(expected)


class FlowRun:
    def __init__(self, run_count: int, id: str = "0123456789abcdef", name: str = "vivid-otter") -> None:
        self.run_count, self.id, self.name = run_count, id, name


def test_a_flow_run_names_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=1))
    assert bind_to_flow_run(RunRequest()).run_id == "vivid-otter"
    assert bind_to_flow_run(RunRequest(run_id="mine")) == RunRequest(run_id="mine")
    assert bind_to_flow_run(RunRequest(resume="mine")) == RunRequest(resume="mine")


def test_a_name_of_the_form_becomes_the_name_of_a_folder_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_run(tmp_path, "my-run")
    asked = RunRequest(overrides=(f"run_root={tmp_path}", *SMALL))
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=1, name="my run"))
    request = bind_to_flow_run(asked)
    assert request.run_id == "my-run-01234567"
    assert check(request).run_dir == tmp_path / "my-run-01234567"
    open_folder(request, check(request))
    # The flow run has been renamed by then.
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=2, name="my-run-01234567"))
    assert bind_to_flow_run(asked).run_id == "my-run-01234567"


@given(st.text(max_size=120))
def test_every_name_of_a_flow_run_has_a_folder(name: str) -> None:
    folder = free_name(name, "0123456789abcdef", "no-such-folder", is_retry=False)
    assert re.fullmatch(RUN_NAME_PATTERN, folder)
    if re.fullmatch(r"[a-z]+-[a-z]{1,20}", name) and len(name) <= 80:  # as Prefect makes them
        assert folder == name


def test_a_retried_flow_run_resumes_from_its_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=2))
    config = committed_run(tmp_path)
    request = RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL))
    resumed = bind_to_flow_run(request)
    assert resumed.resume == "mine"
    assert check(resumed).trainer == config.trainer


def test_a_retried_flow_run_without_a_commit_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=2))
    request = RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL))
    folder = open_folder(request, check(request))
    folder.metrics.append({"iteration": 0})
    with folder.locked(), pytest.raises(ConfigError, match=r"run_id=mine: process \d+ is at work on this run"):
        bind_to_flow_run(request)
    assert folder.metrics.read() == [{"iteration": 0}]
    again = bind_to_flow_run(request)
    assert again == request
    assert open_folder(again, check(again)).metrics.read() == []


@pytest.mark.parametrize("done", [-1, 1], ids=["nothing-committed", "committed"])
def test_a_retried_flow_run_does_not_touch_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=1))
    config = committed_run(tmp_path, done=done)
    monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count=2, id="fedcba9876543210"))
    request = RunRequest(run_id="mine", overrides=(f"run_root={tmp_path}", *SMALL))
    assert bind_to_flow_run(request) == request
    with pytest.raises(ConfigError, match=f"run_id=mine: {tmp_path}/mine exists"):
        check(request)
    assert RunFolder(config.run_dir).config()["run_id"] == "mine"


def test_the_last_line_of_a_run() -> None:
    summary = {
        "success_rate_before": 0.5,
        "success_rate_after": 0.96875,
        "num_goals": 64,
        "seed": 3,
        "train_seconds": 61.7,
    }
    assert EmbodiedConfig.summary_line(summary) == "success_rate before=0.500 after=0.969 goals=64 seed=3 seconds=62"


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        ("critic.epochs=3", "algorithms with a critic, such as ppo and sac"),
        ("+critic={epochs:3}", "algorithms with a critic, such as ppo and sac"),
        ("classifier.labelled_share=0.5", "algorithm=success_classifier"),
        ("progress.alpha=0.5", "algorithm=srpo"),
        ("algorithm.lam=0.9", "algorithms with a critic, such as ppo"),
        ("algorithm.value_clip=0.9", "algorithms with a critic, such as ppo"),
        ("algorithm.pass_k=2", "algorithm=pass_at_k"),
        ("algorithm.baseline_decay=0.5", "algorithm=rae"),
        ("algorithm.cpgd.weight=naive", "algorithm=cpgd"),
        ("algorithm.covariance.fraction=0.1", "algorithm=clip_cov and kl_cov"),
        ("algorithm.sapo.tau_positive=2", "algorithm=sapo"),
    ],
)
def test_a_word_that_the_algorithm_does_not_read_is_refused(word: str, allowed: str) -> None:
    config = compose_config(["experiment=embodied"])
    with pytest.raises(ConfigError) as caught:
        refuse_unread([word], config)
    assert str(caught.value) == f"{word}: has no effect with algorithm=grpo; only used with {allowed}"


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("ppo", ("critic.epochs=3", "algorithm.lam=0.9", "algorithm.value_clip=0.9")),
        ("success_classifier", ("classifier.labelled_share=0.5",)),
        ("srpo", ("progress.alpha=0.5",)),
        ("pass_at_k", ("algorithm.pass_k=2", "critic=null", "trainer.epochs=2")),
        ("kl_cov", ("algorithm.covariance.fraction=0.1",)),
        ("sapo", ("algorithm.sapo.tau_positive=2",)),
        ("rlpd", ("critic.learning_rate=1e-3",)),
    ],
)
def test_a_word_that_the_algorithm_reads_is_taken(algorithm: str, words: tuple[str, ...]) -> None:
    refuse_unread(words, compose_config(["experiment=push", f"algorithm={algorithm}"]))
    own = compose_config(["experiment=push", "algorithm.loss=embodyflow.algorithms.losses:ppo"])
    refuse_unread([word for word in words if word.startswith("algorithm.")], own)


def test_a_request_with_a_word_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^critic.epochs=3: has no effect with algorithm=grpo; only used with"):
        check(RunRequest(overrides=(f"run_root={tmp_path}", "critic.epochs=3")))
