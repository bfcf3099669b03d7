"""Private folders: only their owner can enter, sockets fit, and those of killed processes go."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.process.files import private_folder as module
from embodyflow.process.files.private_folder import RAY_SUBFOLDER, private_folder, remove_abandoned, user_folder

HOLD = "import sys; from embodyflow.process.files.private_folder import private_folder\n"
HOLD += "with private_folder() as folder: print(folder, flush=True); sys.stdin.read()"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a short path, that is the only one; pytest has made its own before."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="x") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setattr(module, "_SHORT_PLACES", (short,))
        yield Path(short)


@pytest.mark.parametrize("length", [1, 60])
def test_the_folder_is_private_short_and_goes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="x" * length) as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        with private_folder(for_sockets=True) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / RAY_SUBFOLDER).is_dir()
            assert len(str(folder / RAY_SUBFOLDER)) <= 43
            assert list(Path(place).iterdir()) == ([folder] if length == 1 else [])
        assert not folder.exists()
        with private_folder() as folder:  # holds no sockets, so it stays where the user wants temporary files
            assert folder.parent == Path(place)


def test_a_killed_process_leaves_a_folder_that_the_next_start_removes(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "TMPDIR": str(place)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        (theirs / "log").write_text("of five megabytes")
        with private_folder() as ours:
            assert theirs.exists()  # its process lives
            process.send_signal(signal.SIGKILL)
            process.wait()
            remove_abandoned()
            assert not theirs.exists() and ours.exists()


def test_other_folders_stay(place: Path, tmp_path: Path) -> None:
    """Those without a lock, links to folders, and folders of other users are not ours to remove."""
    (place / "embodyflow-unlocked").mkdir()
    (tmp_path / "lock").touch()
    (place / "embodyflow-link").symlink_to(tmp_path)
    (place / "embodyflow-file").touch()
    if os.getuid() == 0:
        (place / "embodyflow-theirs").mkdir()
        (place / "embodyflow-theirs" / "lock").touch()
        os.chown(place / "embodyflow-theirs", 54321, 54321)
    before = sorted(place.iterdir())
    remove_abandoned()
    assert sorted(place.iterdir()) == before
    assert (tmp_path / "lock").exists()


def test_a_folder_for_all_processes_of_a_user_is_theirs_alone(place: Path) -> None:
    folder = user_folder("prefect")
    assert folder == user_folder("prefect") == place / f"embodyflow-{os.getuid()}-prefect"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="must be a folder of this user alone"):
        user_folder("prefect")
    folder.rmdir()
    folder.symlink_to(place)
    with pytest.raises(ConfigError, match="must be a folder of this user alone"):
        user_folder("prefect")


def test_a_machine_without_a_short_writable_folder_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(module, "_SHORT_PLACES", (str(tmp_path / "missing"),))
    with (
        pytest.raises(ConfigError, match=r"^TMPDIR=.*must be a folder that you can write to and at most \d+ bytes"),
        private_folder(for_sockets=True),
    ):
        pass
