"""``embodyflow init``, and how a project's rooms and configurations are found."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from embodyflow import __version__
from embodyflow.cli.main import main
from embodyflow.config.composition.compose import compose_config, experiments
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.orchestration.request.request import check, parse_arguments
from embodyflow.project import VERSION_FILE, RoomsRecord, check_room, rooms_note
from embodyflow.stack.stack_folder import StackFolder

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("flows", "pipelines", "tasks", "envs", "deployments")
SUFFIXES = (".py", ".yaml")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, the current folder."""
    assert main(["init", str(tmp_path / "mine")]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_its_own_rooms_and_an_example_experiment(project: Path) -> None:
    shipped = {f"{room}/{path.name}" for room in COPIED for path in (ROOT / room).iterdir() if path.suffix in SUFFIXES}
    own = {"README.md", ".gitignore", VERSION_FILE, "configs/experiment/mine.yaml"}
    assert files_in(project) == shipped | own
    for name in shipped:
        assert (project / name).read_bytes() == (ROOT / name).read_bytes()
    readme = (project / "README.md").read_text()
    assert all(f"`{room}/`" in readme for room in (*COPIED, "configs"))
    assert rooms_note(project) is None


@pytest.mark.parametrize("taken", ["README.md", "tasks.py", "envs/mine.py", ".gitignore"])
def test_a_folder_with_any_of_its_files_is_refused_and_left_alone(
    tmp_path: Path, taken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("theirs")
    assert main(["init", str(tmp_path)]) == 2
    name = taken.partition("/")[0]
    assert capsys.readouterr().err == f"{tmp_path}: holds {name} already; allowed is a folder without it\n"
    assert files_in(tmp_path) == {taken} and (tmp_path / taken).read_text() == "theirs"


def test_a_folder_with_other_files_becomes_a_project(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("theirs")
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "LICENSE").read_text() == "theirs" and (tmp_path / "flows" / "grpo.py").is_file()


def test_a_path_that_cannot_be_a_folder_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "mine"):
        assert main(["init", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{path}: ")


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"embodyflow {__version__}\n"


@pytest.mark.parametrize("command", ["up", "run", "status"])
def test_rooms_of_another_version_are_noted_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.setattr("embodyflow.cli.up.foreground", lambda: 0)
    monkeypatch.setattr("embodyflow.cli.up.status", lambda: 0)
    monkeypatch.setattr("embodyflow.cli.run.run_experiment", lambda flow, words: 0)
    capsys.readouterr()
    assert main([command]) == 0
    assert capsys.readouterr().err == ""
    for version, remedy in (("0.1.0", "`embodyflow init --upgrade` "), ("99.0", "install embodyflow 99.0 or newer")):
        (project / VERSION_FILE).write_text(f'[rooms]\nversion = "{version}"\n')
        assert main([command]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        came = f"note: the rooms of this project come from embodyflow {version}, and {__version__} is installed; "
        assert line.startswith(came + remedy)


def test_the_record_of_a_project_is_read_as_it_was_written(project: Path) -> None:
    record = RoomsRecord.read(project)
    assert record is not None and set(record.digests) == files_in(project) - {VERSION_FILE}
    strange = RoomsRecord(record.version, {'tasks/a "b".py': "0" * 64, "envs/ü.py": "1" * 64})
    (project / VERSION_FILE).write_text(strange.text(), encoding="utf-8")
    assert RoomsRecord.read(project) == strange


@pytest.mark.parametrize(
    "content",
    ["rooms = 3", "[rooms]", '[rooms]\nversion = "new"', "version =", '[rooms]\nversion = "0.1.0"\nfiles = 3'],
)
def test_a_version_that_cannot_be_read_is_one_line(project: Path, content: str) -> None:
    (project / VERSION_FILE).write_text(content)
    with pytest.raises(ConfigError) as refusal:
        rooms_note(project)
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"{project / VERSION_FILE}: rooms.version must be a version such as")


def test_configurations_of_the_project_come_before_the_shipped_ones(project: Path) -> None:
    assert {"mine", "embodied", "push"} <= set(experiments())
    config = compose_config(["experiment=mine"])
    assert (config.experiment, config.iterations, config.env.tasks) == ("mine", 6, ("reach-v3",))
    (project / "configs" / "trainer").mkdir()
    shutil.copy(ROOT / "configs" / "trainer" / "fsdp.yaml", project / "configs" / "trainer" / "mine.yaml")
    (project / "configs" / "experiment" / "push.yaml").write_text(
        "# @package _global_\ndefaults: [embodied]\nexperiment: push\niterations: 2\n"
    )
    assert compose_config(["experiment=push", "trainer=mine"]).iterations == 2
    with pytest.raises(ConfigError, match=r"^experiment=mind: allowed are .*\bmine, "):
        compose_config(["experiment=mind"])


FLOW = """
# @package _global_
defaults: [grpo]
algorithm_name: careful_steps
flow: careful_steps
recipes:
  careful_steps:
    pipeline: {name: embodied_grpo}
"""


def test_a_flow_of_the_user_s_own_runs_each_pipeline_that_suits_its_algorithm(project: Path) -> None:
    (project / "configs" / "algorithm").mkdir()
    (project / "configs" / "algorithm" / "careful_steps.yaml").write_text(FLOW)
    with (project / "deployments" / "prefect.yaml").open("a") as file:
        file.write("\n  - name: mine\n    entrypoint: flows/careful_steps.py:careful_steps\n")
    assert StackFolder(project).deployment("careful_steps", "mine") == "careful_steps/mine"
    config = check(parse_arguments(["experiment=mine"], "careful_steps"))
    assert (config.flow, config.pipeline.name) == ("careful_steps", "embodied_grpo")
    kl = config.algorithm.kl.model_copy(update={"placement": "reward", "coef": 0.1})
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"kl": kl})})
    with pytest.raises(ConfigError, match=r"allowed are placement=loss, pipeline\.name=grpo_kl_reward"):
        check_compatibility(config)
    pipeline = config.pipeline.model_copy(update={"name": "grpo_kl_reward"})
    check_compatibility(config.model_copy(update={"pipeline": pipeline}))


def test_configurations_of_a_folder_that_is_not_a_project_are_left_alone(project: Path) -> None:
    shutil.rmtree(project / "deployments")
    assert "mine" not in experiments()
    with pytest.raises(ConfigError, match=r"^experiment=mine: allowed are "):
        compose_config(["experiment=mine"])


@pytest.fixture
def alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, whose rooms alone are found; what was imported before is forgotten."""
    monkeypatch.setattr(sys, "path", [str(project), *(path for path in sys.path if "site-packages" in path)])
    for room in ("pipelines", "tasks"):
        monkeypatch.delitem(sys.modules, room, raising=False)
    importlib.invalidate_caches()
    return project


def test_the_rooms_of_a_project_are_in_their_place(alone: Path) -> None:
    check_room("tasks", ["compute_reward", "train_actor"])
    check_room("pipelines", ["BUILT_IN"])
    with pytest.raises(ConfigError, match=r"^tasks:fly: .*/tasks/__init__\.py does not define it"):
        check_room("tasks", ["fly"])


@pytest.mark.parametrize(
    ("theirs", "content", "place"),
    [("tasks.py", "def mine():\n    pass\n", "tasks.py"), ("tasks/mine.py", "", "tasks")],
)
def test_a_module_that_hides_a_room_is_refused_in_one_line(alone: Path, theirs: str, content: str, place: str) -> None:
    shutil.rmtree(alone / "tasks")
    (alone / theirs).parent.mkdir(exist_ok=True)
    (alone / theirs).write_text(content)
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as refusal:
        check_room("tasks")
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"tasks:generate: {alone / place} does not define it; rename that module if it hides")


@pytest.mark.parametrize("source", ["from elsewhere import *\n", "def __getattr__(name):\n    ...\n", "def broken(:\n"])
def test_a_module_whose_names_are_known_only_when_it_runs_passes(alone: Path, source: str) -> None:
    (alone / "tasks" / "__init__.py").write_text(source)
    check_room("tasks")


def test_outside_of_a_project_a_room_is_missed_in_one_line(alone: Path) -> None:
    shutil.rmtree(alone / "pipelines")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError) as refusal:
        check_room("pipelines")
    (line,) = str(refusal.value).splitlines()
    assert line.startswith(f"pipelines: {alone} has no room pipelines/; run this in a project's folder")


@pytest.mark.parametrize("place", [".", "sub/mine"])
def test_a_folder_inside_a_run_is_refused(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("experiment: push\nflow: grpo\niterations: 3\njob: embodied\n")
    monkeypatch.chdir(run)
    assert main(["init", place]) == 2
    assert (
        capsys.readouterr().err
        == f"{place}: lies in {run}, the folder of a run; allowed is a folder outside of all runs\n"
    )
    assert files_in(run) == {"config.yaml"}
    (run / "config.yaml").write_text("title: a site of another program\n")
    assert main(["init", place]) == 0


def test_a_project_that_cannot_be_written_whole_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which names no file. The command can be given again once there is room."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "LICENSE").touch()
    opened = Path.open

    def full(path: Path, *words: str, **options: str) -> object:
        if path.name == "evaluate.py" and words == ("x",):
            path.touch()
            return open("/dev/full", "w")
        return opened(path, *words, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        assert main(["init", str(tmp_path / "mine")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/mine: cannot be written: No space left on device: {tmp_path}/mine/")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["LICENSE"]
