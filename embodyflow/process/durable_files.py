"""Files that are there after a power failure: what they hold, and the names that lead to them.

A disk promises what was flushed and nothing else: a file's content by the file, its name by the folder it is in.
"""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk: not there for good before."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, as far as they are missing, and have their names on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write beside, flush, rename: a reader sees the old file or the new one, also after a power failure.

    Which of the two that is then is certain as soon as the folder is flushed.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def write_durably(path: Path, text: str) -> None:
    """Write as :func:`write_atomically`, and have it on the disk before returning."""
    write_atomically(path, text)
    flush(path.parent)


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines that appending one after the other, each flushed, has left; the last may not have come so far.

    It then lacks its end; or its end is there, and zeros are where a block before it never reached the disk.
    """
    *lines, _ = content.split(b"\n")
    if lines and b"\0" in lines[-1]:
        lines.pop()
    return lines
