"""The folder of a sandboxed program, which may hold folders of any depth, name and mode."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator

DEEPEST = 64
"""Depth of folders that are measured; a program that makes deeper ones exceeds its limit."""
BLOCK_BYTES = 4096
"""Least size that a file counts with, so that many empty files count as well."""


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Make an empty folder, and remove it with all that it holds on exit.

    Args:
        prefix: Beginning of its name.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # a process that the kernel could not end yet may still write into it
            remove(folder)


def remove(folder: str) -> None:
    """Remove a folder and all that it holds.

    Inner folders move to the top before they are emptied, so that neither a path nor the stack grows with the depth.

    Raises:
        OSError: Another process writes into the folder.
    """
    root = _open(folder)
    unused = os.urandom(8).hex()
    count = 0
    try:
        while names := os.listdir(root):
            for name in names:
                if not _is_folder(name, root):
                    os.unlink(name, dir_fd=root)
                    continue
                inner = _open(name, root)
                try:
                    for each in os.listdir(inner):
                        if _is_folder(each, inner):
                            os.chmod(each, 0o700, dir_fd=inner)  # the owner can move only a folder that it can write
                            os.rename(each, f"{unused}-{count}", src_dir_fd=inner, dst_dir_fd=root)
                            count += 1
                        else:
                            os.unlink(each, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    os.rmdir(folder)


def size_of(folder: str, limit: int, depth: int = DEEPEST) -> int:
    """Return the bytes of the files in a folder of this mount namespace, or a number above the limit.

    Files that cannot be measured, because folders are too deep, paths too long or modes too narrow, exceed the limit.
    """
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    total += max(BLOCK_BYTES, entry.stat(follow_symlinks=False).st_size)
                    if entry.is_dir(follow_symlinks=False):
                        total += size_of(entry.path, limit - total, depth - 1) if depth else limit + 1
                if total > limit:
                    return total
    except FileNotFoundError:
        return total
    except OSError:
        return limit + 1
    return total


def _open(name: str, parent: int | None = None) -> int:
    """Return a descriptor of a folder that its owner can read and write from now on."""
    os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
