"""Files that are replaced as a whole."""

import errno
import os
from pathlib import Path

import pytest

from embodyflow.process.files.durable_files import replacing, write_atomically


def test_a_link_that_waits_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write, one of them could have a file of the user's overwritten."""
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / f".status.json.{os.getpid()}").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "status.json", "new")
    assert (tmp_path / "elsewhere").read_text() == "theirs" and (tmp_path / "status.json").read_text() == "new"


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(OSError, match="No space left on device") as failed, replacing(path) as file:
        file.write("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert failed.value.filename == str(path)  # a full disk names no file
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_same_bytes_in_each_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("io.text_encoding", lambda encoding, stacklevel=2: encoding or "ascii")
    write_atomically(tmp_path / "card", "95 % – é")
    assert (tmp_path / "card").read_bytes() == "95 % – é".encode()
