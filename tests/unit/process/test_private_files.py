"""A file with a secret is its owner's, whatever the umask and an older file permit."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from embodyflow.process.files.private_files import open_private, write_private


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_file_that_others_could_read_is_replaced_by_one_that_they_cannot(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o666)
    with path.open() as opened_before:
        write_private(path, "new")
        assert opened_before.read() == "old"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_waits_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f".secret.{os.getpid()}").symlink_to(tmp_path / "elsewhere")
    write_private(tmp_path / "secret", "new")
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_is_created_for_its_owner(tmp_path: Path) -> None:
    with open(tmp_path / "log", "a", opener=open_private) as file:
        file.write("line")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(str(tmp_path / "log"), os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / "theirs").exists()
