"""A lock file that one process holds at a time."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from embodyflow.errors import ConfigError


@contextmanager
def hold_lock(path: Path, refusal: Callable[[str], str]) -> Iterator[None]:
    """Hold a lock file, which then contains this process's id, within the block.

    The operating system releases the lock when the process ends, however it ends.

    Args:
        path: Lock file, created if missing. A link is refused: what it leads to would be overwritten.
        refusal: Function that returns the error message, given the id of the process that holds the lock.

    Raises:
        ConfigError: Another process holds the lock, or this process may not write the file.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "a+")
    except OSError as error:  # the file is another user's, or the file system is read-only
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{path}: is a symbolic link; remove it") from error
        raise ConfigError(f"{path}: {error.strerror}; allowed is a writable folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(refusal(file.read())) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def try_lock(path: Path) -> IO[str] | None:
    """Lock a file, created if missing; return it open, or ``None`` if another process holds the lock.

    The lock ends when the file is closed, or with this process. The holder may remove the file: who comes after it
    finds no file or another one, and locks that.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    return None


def holder(path: Path) -> int | None:
    """Return the id of the process that holds a lock file; ``None`` if none does.

    The file is only read, so that other users may ask.
    """
    try:
        file = path.open()
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            return int(text) if text.isdecimal() else 0  # the holder writes its id right after it takes the lock
    return None
