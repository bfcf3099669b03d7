"""A file that one process holds at a time."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from embodyflow.errors import ConfigError


@contextmanager
def held(path: Path, refusal: Callable[[str], str]) -> Iterator[None]:
    """Hold a file, which then names this process; the lock goes with the process, however it ends.

    Args:
        path: of the file, made when missing.
        refusal: why this process cannot go on, given the one that holds it.

    Raises:
        ConfigError: another process holds it, or this one may not write to it.
    """
    try:
        file = path.open("a+")
    except OSError as error:  # another user's, or on a file system for reading only
        raise ConfigError(f"{path}: {error.strerror}; allowed is a folder that can be written to") from error
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
