"""References to modules whose package has the name of another one on the import path."""

import sys
from pathlib import Path

import pytest

from embodyflow.references import resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is on the import path behind a project, whose ``examples`` has no ``__init__.py``."""
    project, other = tmp_path / "project", tmp_path / "other"
    write(project / "examples" / "experimental" / "math_env.py", "class MathEnv: place = 'mine'\n")
    other.mkdir()
    rest = [path for path in sys.path if not Path(path, "examples").exists()]
    monkeypatch.setattr(sys, "path", [str(project), str(other), *rest])
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    return other


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_examples_of_this_repository_hide_no_module_of_a_users_examples(later: Path) -> None:
    (later / "examples").symlink_to(ROOT / "examples")
    assert resolve("examples.experimental.math_env:MathEnv").place == "mine"
    assert callable(resolve("examples.ring.process:pre_process"))


def test_a_module_of_the_project_wins_over_one_of_the_same_name(later: Path) -> None:
    write(later / "examples" / "experimental" / "math_env.py", "class MathEnv: place = 'theirs'\n")
    assert resolve("examples.experimental.math_env:MathEnv").place == "mine"


def test_a_package_that_hides_a_folder_of_the_project_is_named(later: Path) -> None:
    write(later / "examples" / "__init__.py", "")
    folder = later.parent / "project" / "examples"
    with pytest.raises(ImportError) as caught:
        resolve("examples.experimental.math_env:MathEnv")
    hider = later / "examples" / "__init__.py"
    assert str(caught.value).endswith(f"; {hider} hides {folder}, which has no __init__.py: add an empty one")

    write(folder / "__init__.py", "")
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        del sys.modules[name]
    assert resolve("examples.experimental.math_env:MathEnv").place == "mine"


def test_a_missing_module_that_no_package_hides_gets_no_such_note(later: Path) -> None:
    write(later / "examples" / "__init__.py", "")
    with pytest.raises(ImportError, match=r"No module named 'examples\.nowhere'$"):
        resolve("examples.nowhere:f")
