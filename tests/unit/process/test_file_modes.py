"""Files that a library keeps to their owner become as readable as the umask permits."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embodyflow.process.files.file_modes import follow_umask


@pytest.fixture(params=[0o022, 0o027, 0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_weights_are_as_readable_as_any_other_file(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "policy" / "adapter"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        save_file({"weight": np.ones(2)}, place / "model.safetensors")
        (place / "config.json").write_text("{}")
        (place / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch(0o600)
    follow_umask(folder.parent)
    modes = {path.stat().st_mode & 0o777 for path in folder.parent.rglob("*.*")}
    assert modes == {0o666 & ~umask}
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o600
