"""Branches: runs that begin with another run's weights or checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from off_policy_runs import SMALL

from embodyflow.cli.main import main
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import RunRequest, check, open_folder, parse_arguments
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

EVERYTHING = ("branch.take=everything",)


def request(root: Path, *words: str, **values: Any) -> RunRequest:
    return RunRequest(overrides=(f"run_root={root}", "branch.run=first", *words), flow="sac", **values)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 9 iterations that has checkpoints of 0, 4 and 5."""
    folder = tmp_path_factory.mktemp("runs")
    words = (f"run_root={folder}", *SMALL[1:])
    first = RunRequest(experiment="pendulum", iterations=9, run_id="first", overrides=words, flow="sac")
    run = open_folder(first, check(first))
    ledger = Ledger(run.ledger_path)
    for iteration in range(6):
        (run.checkpoints.begin(iteration) / "model").write_text(f"weights {iteration}")
        digest = {"weights_digest": f"{iteration}" * 64, "policy_version": iteration, "digests": {}}
        run.checkpoints.commit(iteration, digest, keep=2)
        ledger.append("commit", iteration, digest)
    (run.path / "replay").mkdir()
    (run.path / "replay" / "000000.transitions").write_bytes(b"1234")
    (run.path / "labelled").mkdir()
    (run.path / "labelled" / "iteration-000000").write_bytes(b"5678")
    return folder


def opened(asked: RunRequest) -> RunFolder:
    return open_folder(asked, check(asked))


def test_a_branch_has_the_configuration_of_its_run_and_its_own_changes(root: Path) -> None:
    config: Any = check(request(root, "trainer.learning_rate=1e-4", "branch.iteration=4", run_id="slow", iterations=3))
    first: Any = check(RunRequest(resume="first", overrides=(f"run_root={root}",), flow="sac"))
    assert config.trainer.learning_rate == 1e-4 and config.run_id == "slow" and config.iterations == 3
    assert (config.branch.run, config.branch.iteration, config.branch.take) == ("first", 4, "weights")
    assert config.policy == first.policy and config.env == first.env and config.seed == first.seed
    assert parse_arguments(["branch.run=first", f"run_root={root}"]).flow == "sac"


def test_weights_alone_become_the_start_of_a_branch(root: Path) -> None:
    folder = opened(request(root, run_id="weights"))
    assert folder.checkpoints.committed() == []
    assert not (folder.path / "replay").exists() and not (folder.path / "labelled").exists()
    assert (folder.origin.folder(5) / "model").read_text() == "weights 5"
    (entry,) = Ledger(folder.ledger_path).entries
    lineage = {"run": "first", "from_iteration": 5, "take": "weights", "weights_digest": "5" * 64}
    assert entry == ("branch", 0, lineage)
    assert check(request(root, run_id="other")).begins_at == 0


def test_models_are_taken_from_one_checkpoint_too(root: Path) -> None:
    folder = opened(request(root, "branch.take=models", "branch.iteration=4", run_id="models"))
    assert folder.checkpoints.committed() == [] and not (folder.path / "replay").exists()
    assert (folder.origin.folder(4) / "model").read_text() == "weights 4"
    assert Ledger(folder.ledger_path).entries[0].facts["take"] == "models"


def test_everything_goes_on_from_the_checkpoint(root: Path) -> None:
    asked = request(root, *EVERYTHING, "branch.iteration=4", run_id="whole")
    assert check(asked).begins_at == 4
    folder = opened(asked)
    assert folder.checkpoints.committed() == [0, 4]
    folder.checkpoints.verify(4)
    copied, original = (each / "replay" / "000000.transitions" for each in (folder.path, root / "first"))
    assert copied.read_bytes() == b"1234" and not copied.samefile(original)  # it grows in place
    assert (folder.path / "labelled" / "iteration-000000").read_bytes() == b"5678"
    kinds = [(entry.kind, entry.iteration) for entry in Ledger(folder.ledger_path).entries]
    assert kinds == [("branch", 4), *(("commit", iteration) for iteration in range(5))]
    resumed: Any = check(RunRequest(resume="whole", overrides=(f"run_root={root}",), flow="sac"))
    assert resumed.branch.iteration == 4


def test_everything_goes_on_with_the_values_that_a_roll_back_left(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "first", tmp_path / "first")
    Ledger(tmp_path / "first" / "ledger.jsonl").append(
        "roll_back", 8, {"detector": "spike", "to": 5, "values": {"trainer.learning_rate": 5e-05}}
    )

    def rate(*words: str) -> float:
        config: Any = check(request(tmp_path, *words, run_id="other"))
        return float(config.trainer.learning_rate)

    assert rate(*EVERYTHING) == 5e-05 and rate(*EVERYTHING, "trainer.learning_rate=1e-4") == 1e-4
    assert rate(*EVERYTHING, "branch.iteration=4") == rate()


def test_runs_and_ledger_show_where_a_branch_comes_from(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # lines as long as they are
    opened(request(root, run_id="shown", iterations=2))
    assert main(["runs", "--run-root", str(root)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert "from" in header.split()
    assert [row.split()[-2] for row in rows if row.split()[-1].endswith("/shown")] == ["first@5"]
    main(["ledger", str(root / "shown")])
    assert "began with weights of first after iteration 5" in capsys.readouterr().out


MISTAKES = {
    "branch.run=second": "branch.run=second: {root}/ has no such run; allowed are ",
    "branch.iteration=3": "branch.iteration=3: the run first has no checkpoint of iteration 3; it has those of 0, 4, 5",
    "policy.hidden_size=32": "policy.hidden_size=32: the run first has 16, which a branch keeps",
    "branch.take=everything rollout.num_steps=4": "rollout.num_steps=4: the run first has 8, which a branch keeps",
    "branch.take=some": "branch.take='some': input should be 'weights', 'models' or 'everything'",
    "trainer.learning_rat=1": "trainer.learning_rat: no such key; did you mean trainer.learning_rate",
    "trainer.epochs=[1": "trainer.epochs=[1: is not in Hydra's grammar; allowed is key=value",
    "trainer.epochs=2,3": "trainer.epochs=2,3: has several values; allowed is one; write a list as trainer.epoch",
    "~trainer.epochs=2": "~trainer.epochs=2: removes a key; allowed for the configuration of a run is key=value",
    "trainer.profile.ranks.x=1": "trainer.profile.ranks.x=1: leads into something that is no section",
    "tracking.wandb_project=${foo}": "tracking.wandb_project: Interpolation key 'foo' not found",
    "trainer.epochs=true": "trainer.epochs=True: input should be a valid integer",
    "trainer=fsdp": "trainer=fsdp: is a section; allowed are its keys, such as trainer.learning_rate=",
    "branch.run=[first": "branch.run=[first: is not in Hydra's grammar; allowed is key=value",
    "branch.take=everything iterations=5": "iterations=5: must be above branch.iteration=5 with branch.take=everything",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(root: Path, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(parse_arguments([f"run_root={root}", "branch.run=first", *words.split()], "sac"))
    assert str(refusal.value).startswith(MISTAKES[words].format(root=root)) and "\n" not in str(refusal.value)


def test_a_branch_is_asked_for_in_any_form_of_the_grammar(root: Path) -> None:
    for words in (("branch={run:first,iteration:4}",), ("branch.run='first'", "branch.iteration=4")):
        config: Any = check(parse_arguments([f"run_root='{root}'", *words, "trainer.learning_rate=1e-4"], "sac"))
        assert (config.branch.run, config.branch.iteration, config.run_root) == ("first", 4, str(root))
        assert config.trainer.learning_rate == 1e-4


def test_a_run_that_this_version_cannot_read_is_named(root: Path) -> None:
    path = root / "first" / "config.yaml"
    before = path.read_text()
    path.write_text(before.replace("epochs:", "epoch:"))
    try:
        with pytest.raises(ConfigError, match=r"^branch.run=first: its config.yaml is not valid in this version: "):
            check(request(root))
    finally:
        path.write_text(before)


def test_a_branch_brings_experiment_and_algorithm(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"^algorithm=td3: must be left out with branch.run, which brings its own"):
        check(request(root, algorithm="td3"))
    with pytest.raises(ConfigError, match=r"^experiment=reacher: must be left out with branch.run"):
        check(request(root, experiment="reacher"))


def test_a_checkpoint_that_is_gone_leaves_no_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(root, run_id="late")
    config = check(asked)
    monkeypatch.setattr("shutil.copytree", lambda *args, **kwargs: (_ for _ in ()).throw(FileNotFoundError("gone")))
    with pytest.raises(ConfigError, match=r"^branch.iteration=5: .*first has lost it meanwhile: gone"):
        open_folder(asked, config)
    assert not (root / "late").exists()


@pytest.fixture(scope="module")
def imitated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs by DAgger and GRPO that have a checkpoint."""
    folder = tmp_path_factory.mktemp("imitated")
    for algorithm in ("dagger", "grpo"):
        first = RunRequest(
            experiment="push", run_id=algorithm, overrides=(f"run_root={folder}", f"algorithm={algorithm}"), flow="grpo"
        )
        run = open_folder(first, check(first))
        run.checkpoints.begin(0)
        run.checkpoints.commit(0, {"weights_digest": "0" * 64, "policy_version": 0, "digests": {}}, keep=2)
        Ledger(run.ledger_path).append("commit", 0, {})
    return folder


def test_reinforcement_learning_goes_on_from_imitation_and_not_the_reverse(imitated: Path) -> None:
    def branch(run: str, *words: str) -> Any:
        return check(RunRequest(overrides=(f"run_root={imitated}", f"branch.run={run}", *words), flow="grpo"))

    config = branch("dagger", "dagger=null", "pipeline.name=embodied_grpo", "rollout.group_size=8", "trainer.epochs=4")
    assert config.dagger is None and config.groups["trainer"].engine.endswith("FSDPTrainer")
    assert branch("dagger", "dagger.steps=7").dagger.steps == 7
    back = ("dagger.steps=7", "pipeline.name=dagger", "rollout.keep_episodes=0", "algorithm.clip_high=0.2")
    with pytest.raises(ConfigError, match=r"^dagger: must be null: the run grpo has no labelled steps to go on with$"):
        branch("grpo", *back, "trainer.epochs=1", "trainer.num_minibatches=1")


def test_a_branch_keeps_the_features_of_its_critic(tmp_path: Path) -> None:
    first = RunRequest(experiment="embodied", run_id="first", overrides=(f"run_root={tmp_path}",), flow="ppo")
    run = open_folder(first, check(first))
    run.checkpoints.begin(0)
    run.checkpoints.commit(0, {"weights_digest": "0" * 64, "policy_version": 0, "digests": {}}, keep=2)
    Ledger(run.ledger_path).append("commit", 0, {})
    words = (f"run_root={tmp_path}", "branch.run=first", "critic.features=policy")
    with pytest.raises(ConfigError, match=r"^critic.features=policy: the run first has own, which a branch keeps$"):
        check(RunRequest(overrides=words, flow="ppo"))
