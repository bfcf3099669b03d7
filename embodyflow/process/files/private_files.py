"""Files that hold a secret, readable by their owner only."""

import os
from pathlib import Path

from embodyflow.process.files.durable_files import replacing

PRIVATE_MODE = 0o600


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically: no other user can read it, whatever the mode of an older file was."""
    with replacing(path, PRIVATE_MODE) as file:
        file.write(text)


def open_private(path: str, flags: int) -> int:
    """Open a file, created with mode 0600, and no link to one; the ``opener`` of :func:`open`."""
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE_MODE)
