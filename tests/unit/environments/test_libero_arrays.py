"""LIBERO's recorded initial states are read as arrays, and no code that a file holds runs."""

import importlib.util
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("robosuite") is None:
    pytest.skip("needs the extra libero", allow_module_level=True)

from embodyflow.environments.libero.array_files import read_array


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def written(path: Path, value: Any, protocol: int = 2) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol))
        archive.writestr("archive/version", "3")
    return path


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL))
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_arrays_of_numbers_are_read(protocol: int, dtype: type, tmp_path: Path) -> None:
    array = np.arange(12, dtype=dtype).reshape(3, 4) - 5
    found = read_array(written(tmp_path / "states", array, protocol))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("hide", [lambda each: each, lambda each: [1, each], lambda each: np.array([each], object)])
def test_code_in_a_file_does_not_run(hide: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "states", hide(Planted(tmp_path / "made")))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: is no array .*names posix\.mkdir, which is not"):
        read_array(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [[1.0], "text", np.array([None])])
def test_other_values_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold an array of numbers"):
        read_array(written(tmp_path / "states", value))


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "states", np.zeros(9))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="is no array in torch's format") as refusal:
        read_array(path)
    assert "\n" not in str(refusal.value)
