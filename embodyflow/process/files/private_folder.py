"""Temporary folders that no other user of the machine can enter, and that do not outlive their process for long."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embodyflow.errors import ConfigError

RAY_SUBFOLDER = "ray"
LONGEST_FOR_SOCKETS = 43 - len(f"/{RAY_SUBFOLDER}")
"""Longest path of a private folder, in bytes, with which the paths of Ray's sockets keep the system's limit of 107."""

_PREFIX = "embodyflow-"
_LOCK = "lock"
_SHORT_PLACES = ("/tmp", "/var/tmp")


@contextmanager
def private_folder(*, for_sockets: bool = False) -> Iterator[Path]:
    """Create a temporary folder of mode 0700 and remove it at the end of the block.

    This process holds a lock in the folder. A process that is killed leaves its folder but not the lock, so each call
    first removes the folders of this user that nobody holds.

    Args:
        for_sockets: True for a folder whose subfolder :data:`RAY_SUBFOLDER`, which then exists, holds Ray's files. Ray
            gives its own folders mode 0777, so that other users could replace its files and sockets. The folder is
            below ``TMPDIR`` unless that makes the paths of the sockets too long, else below ``/tmp`` or ``/var/tmp``.

    Raises:
        ConfigError: No folder with a path of that length can be written.
    """
    remove_abandoned()
    folder = _make(for_sockets)
    with _locked(folder):
        try:
            if for_sockets:
                (folder / RAY_SUBFOLDER).mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def user_folder(purpose: str) -> Path:
    """Return the temporary folder of mode 0700 that all processes of this user share; the first call creates it.

    Args:
        purpose: Word that the folder's name ends with.

    Raises:
        ConfigError: The folder cannot be created, or another user has made it.
    """
    folder = Path(_chosen_place()) / f"{_PREFIX}{os.getuid()}-{purpose}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_private = _is_ours(folder) and not folder.stat().st_mode & 0o077
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; set TMPDIR to a folder that you can write to") from error
    if not is_private:
        raise ConfigError(f"{folder}: must be a folder of this user alone; remove it, or set TMPDIR to another place")
    return folder


def remove_abandoned() -> None:
    """Remove this user's private folders whose processes have ended without removing them."""
    places = {*_SHORT_PLACES, _chosen_place()}
    for folder in (each for place in places for each in Path(place).glob(f"{_PREFIX}*")):
        with suppress(OSError):  # its owner removes it, or another process does what this one does
            if not _is_ours(folder):
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def _make(for_sockets: bool) -> Path:
    chosen = _chosen_place()
    mistakes = []
    for place in dict.fromkeys([chosen, *_SHORT_PLACES] if for_sockets else [chosen]):
        longest = len(os.fsencode(place)) + len(f"/{_PREFIX}12345678")
        if for_sockets and longest > LONGEST_FOR_SOCKETS:
            mistakes.append(f"{place} is too long for the paths of Ray's sockets by {longest - LONGEST_FOR_SOCKETS}")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError as error:
            mistakes.append(f"{place}: {error.strerror}")
    shortness = f" and at most {LONGEST_FOR_SOCKETS - len(f'/{_PREFIX}12345678')} bytes long" if for_sockets else ""
    raise ConfigError(f"TMPDIR={chosen}: must be a folder that you can write to{shortness}; {'; '.join(mistakes)}")


def _chosen_place() -> str:
    """Return ``TMPDIR``, or the system's folder for temporary files if that cannot be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:  # its message lists the folders that were tried
        raise ConfigError(f"TMPDIR={os.environ.get('TMPDIR', '')}: {error.strerror}") from error


def _is_ours(folder: Path) -> bool:
    """Return True if a folder, not a link to one, belongs to this user."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # The lock gets its name once it is held, so that nobody takes a folder without a holder for an abandoned one.
    aside = folder / f"{_LOCK}.new"
    with aside.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aside.rename(folder / _LOCK)
        yield
