"""Files that hold a secret, readable by their owner only."""

import os
from pathlib import Path

PRIVATE_MODE = 0o600


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically: no other user can read it, whatever the mode of an older file was."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "w") as file:
        file.write(text)
    os.replace(aside, path)


def open_private(path: str, flags: int) -> int:
    """Open a file, created with mode 0600; the ``opener`` of :func:`open`."""
    return os.open(path, flags, PRIVATE_MODE)
