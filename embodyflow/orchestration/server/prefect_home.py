"""The folder of Prefect's own files, where the home of the user cannot be written, as in many containers."""

import os
from collections.abc import Mapping
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.process.files.private_folder import user_folder

_VARIABLE = "PREFECT_HOME"


def home_in_place_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that moves Prefect's home to a temporary folder of this user, if it is needed.

    The record of a run is its folder, so a home that a machine forgets loses only the history that the UI shows.
    """
    if _VARIABLE in environ or _can_write(Path("~/.prefect").expanduser()):
        return {}
    try:
        return {_VARIABLE: str(user_folder("prefect"))}
    except ConfigError:  # `check_home` refuses the run, when it has somebody to tell
        return {}


def check_home(environ: Mapping[str, str]) -> None:
    """Check that Prefect can start a server for a flow that has none.

    Raises:
        ConfigError: The home of Prefect cannot be written.
    """
    home = Path(environ.get(_VARIABLE, "~/.prefect")).expanduser()
    if not environ.get("PREFECT_API_URL") and not _can_write(home):
        raise ConfigError(
            f"{_VARIABLE}={home}: must be a folder that you can write to; set {_VARIABLE} or TMPDIR to one"
        )


def _can_write(folder: Path) -> bool:
    """Return True if this user may write in a folder, or create it."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
