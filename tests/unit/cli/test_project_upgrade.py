"""``embodyflow init --upgrade`` brings the rooms of a project to the installed version and keeps the user's changes."""

from pathlib import Path

import psutil
import pytest
from packaging.version import Version

from embodyflow import __version__
from embodyflow.cli.main import main
from embodyflow.cli.project.init import digest, project_files
from embodyflow.cli.project.upgrade import Change, plan_upgrade
from embodyflow.project import VERSION_FILE, RoomsRecord, rooms_note
from embodyflow.stack.stack_folder import StackFolder

FILES = {str(path): text for path, text in project_files().items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, the current folder."""
    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    assert main(["init", str(tmp_path / "mine")]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def age(project: Path, old: dict[str, str | None], *, knows_files: bool = True) -> None:
    """Make a project that version 0.1.0 wrote; ``old`` maps files to that version's content, ``None`` to no file."""
    shipped = {**FILES, **old}
    for name, text in old.items():
        (project / name).unlink(missing_ok=True)
        if text is not None:
            (project / name).write_text(text)
    recorded = {name: digest(text.encode()) for name, text in shipped.items() if text is not None}
    record = RoomsRecord(Version("0.1.0"), recorded if knows_files else {})
    (project / VERSION_FILE).write_text(record.text())


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return kind and file of each change that was printed."""
    capsys.readouterr()
    assert main(["init", "--upgrade"]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return [row for row in rows if row[0] in Change.__annotations__["kind"].__args__]


def test_files_that_the_user_did_not_change_become_those_of_the_new_version(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    age(project, {"flows/grpo.py": "old", "tasks/control.py": None, "pipelines/old.py": "old"})
    (project / "tasks" / "mine.py").write_text("theirs")
    assert rooms_note(project) is not None
    assert lines(capsys) == [
        ["updated", "flows/grpo.py"],
        ["new", "tasks/control.py"],
        ["dropped", "pipelines/old.py: is no longer part of embodyflow; delete it if nothing of yours uses it"],
    ]
    for name, text in FILES.items():
        assert (project / name).read_text() == text
    assert (project / "tasks" / "mine.py").read_text() == "theirs" and (project / "pipelines" / "old.py").is_file()
    assert rooms_note(project) is None
    assert RoomsRecord.read(project) == RoomsRecord(
        Version(__version__), {name: digest(text.encode()) for name, text in FILES.items()}
    )
    assert lines(capsys) == []


def test_what_the_user_changed_or_deleted_is_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(project, {"deployments/prefect.yaml": "old", "flows/dapo.py": "old", "tasks/critic.py": None})
    (project / "deployments" / "prefect.yaml").write_text("theirs")
    (project / "flows" / "dapo.py").unlink()
    (project / "tasks" / "critic.py").write_text("theirs")  # a file of the user's own has the name of a new one
    (project / "README.md").write_text("theirs")  # it is the same in both versions
    (project / "configs" / "experiment" / "mine.yaml").unlink()
    assert [" ".join(row) for row in lines(capsys)] == [
        "differs deployments/prefect.yaml: yours is kept, the new one is deployments/prefect.yaml.new",
        "deleted flows/dapo.py: has changed; you deleted yours, so it is left out",
        "differs tasks/critic.py: yours is kept, the new one is tasks/critic.py.new",
    ]
    for name in ("deployments/prefect.yaml", "tasks/critic.py", "README.md"):
        assert (project / name).read_text() == "theirs"
    for name in ("deployments/prefect.yaml", "tasks/critic.py"):
        assert (project / f"{name}.new").read_text() == FILES[name]
    assert not (project / "README.md.new").exists() and not (project / "flows" / "dapo.py").exists()
    assert not (project / "configs" / "experiment" / "mine.yaml").exists()
    assert lines(capsys) == []


def test_a_project_without_recorded_files_loses_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(project, {"flows/grpo.py": "old or theirs", "flows/ppo.py": None}, knows_files=False)
    assert [row[0] for row in lines(capsys)] == ["differs", "new"]
    assert (project / "flows" / "grpo.py").read_text() == "old or theirs"
    assert (project / "flows" / "grpo.py.new").read_text() == FILES["flows/grpo.py"]


def test_an_upgrade_that_was_interrupted_is_completed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(project, {"flows/grpo.py": "old", "flows/ppo.py": "old"})
    (project / "flows" / "grpo.py").write_text(FILES["flows/grpo.py"])  # written before the interruption
    assert lines(capsys) == [["updated", "flows/ppo.py"]]
    assert rooms_note(project) is None


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    assert list(plan_upgrade(tmp_path, {Path("a.py"): "a"}, {})) == [Change(Path("a.py"), "new")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "content", "answer"),
    [
        (["init", "--upgrade"], None, f"has no {VERSION_FILE}; allowed is a project that `embodyflow init` made"),
        (
            ["init", "--upgrade"],
            '[rooms]\nversion = "99.0"',
            f"99.0, and {__version__} is installed; install",
        ),
        (["init", "--upgrade", "nowhere"], "", f"nowhere: has no {VERSION_FILE}"),
        (["init"], "", "folder: must be given, such as in `embodyflow init mine`"),
        (["init", "."], "", ".: is a project already; `embodyflow init --upgrade .` brings its rooms to"),
    ],
)
def test_a_folder_that_cannot_be_upgraded_is_refused_in_one_line(
    project: Path, words: list[str], content: str | None, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        (project / VERSION_FILE).unlink()
    elif content:
        (project / VERSION_FILE).write_text(content)
    capsys.readouterr()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert answer in line


def test_a_project_is_not_upgraded_while_its_stack_is_up(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    age(project, {"flows/grpo.py": "old"})
    capsys.readouterr()
    with StackFolder(project).locked():
        assert main(["init", "--upgrade"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{project}: a stack is up (process {psutil.Process().pid}); `embodyflow down` stops it"
    assert (project / "flows" / "grpo.py").read_text() == "old"


def test_a_folder_in_the_place_of_a_file_is_one_line_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    age(project, {"flows/grpo.py": None, "flows/dapo.py": "old"})
    (project / "flows" / "grpo.py").mkdir()
    capsys.readouterr()
    assert main(["init", "--upgrade"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{project}: cannot be upgraded: Is a directory: {project}/flows/grpo.py"
    assert (project / "flows" / "dapo.py").read_text() == "old"
