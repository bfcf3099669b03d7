"""Failures of the disk under a run, reported in one line: no space, not writable, or a run's folder that is gone."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embodyflow import errors
from embodyflow.errors import StorageError
from embodyflow.record.run_folder import RunFolder

_FULL, _READ_ONLY = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES)

_TEXTS = {os.strerror(number): number for number in (*_FULL, errno.EROFS)} | {
    "PytorchStreamWriter failed": errno.ENOSPC
}
"""Text of failures that have no number: those of Rust and C++ libraries, and tracebacks from other processes."""

_EXPLAINED = tuple(
    each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__
)
"""Errors whose own message says what to change, whatever caused them."""


@contextmanager
def storage_faults_explained(folder: RunFolder) -> Iterator[None]:
    """Raise the :class:`~embodyflow.errors.StorageError` of a failure of the disk in the block, from the failure."""
    try:
        yield
    except Exception as error:
        fault = storage_fault(error, folder)
        if fault is None or fault is error:
            raise
        raise fault from error


def storage_fault(error: BaseException, folder: RunFolder) -> StorageError | None:
    """Return the failure of the disk that ended a run; ``None`` if something else did.

    Args:
        error: Error, or group of errors, that ended the run.
        folder: Folder of the run.
    """
    try:
        folder.require_present()
    except StorageError as gone:
        return gone
    for each in _chain(error, seen=set()):
        if isinstance(each, StorageError):
            return each
        if (number := _number(each, folder)) is not None:
            return _described(each, number, folder)
    return None


def _described(error: BaseException, number: int, folder: RunFolder) -> StorageError:
    path = _path(error)
    what = os.strerror(number) if isinstance(error, OSError) else str(error).strip().splitlines()[-1]
    free = free_bytes(path or folder.path)
    needed = folder.checkpoints.newest_bytes()
    takes = "" if needed is None else f"a checkpoint takes {needed / 1e6:.0f} MB and "
    remedy = "make room" if number in _FULL else "make it writable"
    after = "restart the run" if needed is None else f"resume={folder.path.name}"
    return StorageError(f"{path or folder.path}: {what}; {takes}{free / 1e6:.0f} MB are free; {remedy} and {after}")


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a file or folder, which need not exist yet."""
    return shutil.disk_usage(next(each for each in (path, *path.absolute().parents) if each.exists())).free


def _path(error: BaseException) -> Path | None:
    name = error.filename if isinstance(error, OSError) else None
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None


def _number(error: BaseException, folder: RunFolder) -> int | None:
    """Return the number of a failure of the disk; ``None`` for other errors."""
    if isinstance(error, (*_EXPLAINED, BaseExceptionGroup)):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        path = _path(error)
        is_ours = path is not None and path.absolute().is_relative_to(folder.path.parent.absolute())
        allowed = (*_FULL, *_READ_ONLY) if is_ours else (*_FULL, errno.EROFS)
        return error.errno if error.errno in allowed else None
    return next((number for text, number in _TEXTS.items() if text in str(error)), None)


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and the errors that they were raised from."""
    if id(error) in seen:
        return
    seen.add(id(error))
    # Ray keeps the error of another process, with its number and file name, in `cause`.
    if isinstance(cause := getattr(error, "cause", None), BaseException):
        yield from _chain(cause, seen)
    yield error
    if isinstance(error, _EXPLAINED):
        return
    for other in (*getattr(error, "exceptions", ()), error.__cause__, error.__context__):
        if isinstance(other, BaseException):
            yield from _chain(other, seen)
