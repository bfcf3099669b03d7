"""A lock file that one process holds at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.process.files.file_lock import hold_lock, try_lock

HOLD = """
import sys
from pathlib import Path
from embodyflow.process.files.file_lock import try_lock
lock = try_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_holds_a_lock_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        assert try_lock(path) is None
        process.kill()
    lock = try_lock(path)
    assert lock is not None
    lock.close()


def test_a_lock_on_a_removed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may open the file just before the holder removes it, and lock it just afterwards."""
    path = tmp_path / "lock"
    holder = try_lock(path)
    assert holder is not None
    opened = Path.open

    def open_late(self: Path, mode: str) -> object:
        file = opened(self, mode)
        path.unlink()
        holder.close()
        return file

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_late)
        assert try_lock(path) is None
    following = try_lock(path)
    assert following is not None
    following.close()


def test_a_link_in_the_place_of_a_lock_is_refused_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("content")
    (tmp_path / "lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"lock: is a symbolic link; remove it$"), hold_lock(tmp_path / "lock", str):
        pass
    assert (tmp_path / "theirs").read_text() == "content"
