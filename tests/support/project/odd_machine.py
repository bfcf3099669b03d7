"""A machine where little is as a program expects it: another user, no home, few files, long paths, no network."""

import os
import shutil
import subprocess
from pathlib import Path

NUM_FILES = 256
UID = 54321
# `unshare` makes a network of its own, with nothing in it but a loopback interface that is down.
_OFFLINE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# Another user who may read everything, because the interpreter may lie in the home of root.
_READS = "+dac_read_search"
_OTHER_USER = [
    *("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"),
    *(f"--inh-caps={_READS}", f"--ambient-caps={_READS}"),
]
_FEW_FILES = ["sh", "-c", f'ulimit -n {NUM_FILES} && exec "$@"', "sh"]


def odd_environment(folder: Path) -> dict[str, str]:
    """Return a HOME below a file and a TMPDIR of 150 bytes, in which another user has used Prefect.

    Args:
        folder: Folder to create both in.
    """
    (folder / "file").touch()
    place = folder / ("t" * (150 - len(str(folder))))
    (place / "runner_storage").mkdir(parents=True)
    place.chmod(0o1777)
    return {"HOME": str(folder / "file" / "home"), "TMPDIR": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def odd_prefix() -> list[str]:
    """Return the beginning of a command that runs the rest with few files, as another user, without a network.

    Only root can be another user; without its rights the command runs with few files.
    """
    return [*_allowed(_OFFLINE), *_allowed(_OTHER_USER), *_FEW_FILES]


def give_away(folder: Path) -> None:
    """Make a folder, and all in it, that other user's."""
    if _allowed(_OTHER_USER):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID)


def why_not_odd() -> str:
    """Return why commands cannot be run as another user without a network; an empty string if they can."""
    missing = [prefix[0] for prefix in (_OFFLINE, _OTHER_USER) if not _allowed(prefix)]
    return f"needs root and {' and '.join(missing)}" if missing else ""


def _allowed(prefix: list[str]) -> list[str]:
    found = os.getuid() == 0 and shutil.which(prefix[0]) is not None
    return prefix if found and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []
