"""Reading of arrays from files of torch's format without running code that they may hold.

Without tensors the format is a pickle in a zip file, and ``pickle`` calls any function that the file names. Here only
arrays of numbers are constructed.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALLOWED = {
    *((f"numpy.{module}.multiarray", "_reconstruct") for module in ("core", "_core")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    ("_codecs", "encode"),  # the bytes of an array in an old protocol
}
"""Everything that NumPy names in the pickle of an array of numbers."""


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of numbers that a file holds.

    Raises:
        ValueError: The file is no such file, or names anything else than an array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("data.pkl")]
            array = _Unpickler(io.BytesIO(archive.read(name))).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise ValueError(f"{path}: is no array in torch's format: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise ValueError(f"{path}: must hold an array of numbers, holds {type(array).__name__}")
    return array


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not called")
        return super().find_class(module, name)
