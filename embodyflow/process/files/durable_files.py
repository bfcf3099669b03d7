"""Files whose content and names survive a power failure.

A disk keeps only what was flushed: flushing a file keeps its content, flushing its folder keeps its name.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def flush(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, levels: int | None = None) -> None:
    """Create a folder and its missing parents, and flush their names to the disk.

    Args:
        path: The folder.
        levels: Most folders to create; ``None`` means all that are missing.

    Raises:
        FileNotFoundError: More than ``levels`` folders are missing.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing[:levels]):
        folder.mkdir(exist_ok=True)
        flush(folder.parent)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[str]]:
    """Yield a new text file in UTF-8 that takes the place of ``path`` at the end of the block.

    If the block fails, such as on a full disk, the old file stays and nothing is left beside it. The name of the new
    file can be foreseen, so a link that another user of the folder has left there is removed and not followed.

    Args:
        path: File to replace or create.
        mode: Mode of the file, of which the umask takes away.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        with open(aside, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(aside, path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(path)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write a temporary file, flush it and rename it: a reader sees the old file or the new one, never a mixture.

    The same holds after a power failure, but only a flush of the folder guarantees that the new file survives one.
    """
    with replacing(path) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_durably(path: Path, text: str) -> None:
    """Write as :func:`write_atomically`, and flush the new name to the disk before returning."""
    write_atomically(path, text)
    flush(path.parent)


def whole_lines(content: bytes) -> list[bytes]:
    """Return the complete lines of a file to which lines are appended and flushed one by one.

    A power failure may leave the last line incomplete: without its newline, or with the newline but with zeros where a
    block did not reach the disk.
    """
    *lines, _ = content.split(b"\n")
    if lines and b"\0" in lines[-1]:
        lines.pop()
    return lines


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name, or copy it where that is not possible."""
    try:
        os.link(source, target)
    except OSError:  # on another file system, or owned by another user
        shutil.copy2(source, target)
