"""Ray's files lie in a folder that only their owner can enter, with a path short enough for sockets."""

import tempfile
from pathlib import Path

import pytest

from embodyflow.process.private_folder import RAY_SUBFOLDER, make_private_folder


@pytest.mark.parametrize("length", [1, 60])
def test_the_folder_is_private_and_short(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="x" * length) as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        folder = make_private_folder()
        try:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / RAY_SUBFOLDER).is_dir()
            assert len(str(folder / RAY_SUBFOLDER)) <= 43
            assert list(Path(place).iterdir()) == ([folder] if length == 1 else [])
        finally:
            (folder / RAY_SUBFOLDER).rmdir()
            folder.rmdir()
