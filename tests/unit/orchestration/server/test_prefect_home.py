"""Prefect's own files go elsewhere where the user's home cannot be written."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.prefect_home import check_home, home_in_place_of


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home below a file, where nobody can create a folder, not even root."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "file" / "home"


def test_a_home_that_can_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_in_place_of({}) == {}
    check_home({})


def test_a_home_that_cannot_be_written_is_replaced(unwritable: Path, tmp_path: Path) -> None:
    place = tmp_path / f"embodyflow-{os.getuid()}-prefect"
    assert home_in_place_of({}) == {"PREFECT_HOME": str(place)}
    assert place.stat().st_mode & 0o777 == 0o700
    assert home_in_place_of({"PREFECT_HOME": "/the/users/choice"}) == {}


def test_a_choice_that_cannot_be_written_is_refused_in_a_line(unwritable: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^PREFECT_HOME={unwritable}: must be a folder that you can write to"):
        check_home({"PREFECT_HOME": str(unwritable)})
    check_home({"PREFECT_HOME": str(unwritable), "PREFECT_API_URL": "http://127.0.0.1:4200/api"})  # it is not needed


def test_prefect_itself_uses_the_replacement(unwritable: Path, tmp_path: Path) -> None:
    code = "import embodyflow.orchestration, prefect.settings as p; print(p.get_current_settings().home)"
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_HOME"} | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / f"embodyflow-{os.getuid()}-prefect") and done.stderr == ""
