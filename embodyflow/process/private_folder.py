"""Temporary folders that no other user of the machine can enter."""

import shutil
import tempfile
from pathlib import Path

RAY_SUBFOLDER = "ray"
_LONGEST_RAY_FOLDER = 43
"""Length of Ray's folder, in bytes, above which the paths of its sockets may exceed the system's limit of 107."""


def make_private_folder() -> Path:
    """Create a temporary folder of mode 0700 whose subfolder :data:`RAY_SUBFOLDER` can hold Ray's files.

    Ray gives its own folders mode 0777, so that other users could replace its files and sockets.

    Returns:
        The folder: below ``TMPDIR`` unless that makes the paths of Ray's sockets too long, else below ``/tmp``.
    """
    folder = Path(tempfile.mkdtemp(prefix="embodyflow-"))
    if len(str(folder / RAY_SUBFOLDER).encode()) > _LONGEST_RAY_FOLDER:
        shutil.rmtree(folder)
        folder = Path(tempfile.mkdtemp(prefix="embodyflow-", dir="/tmp"))
    (folder / RAY_SUBFOLDER).mkdir()
    return folder
