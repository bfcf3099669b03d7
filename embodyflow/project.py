"""The folders of a project: its own rooms, and the rooms that the package ships.

A project is a folder with ``flows/``, ``pipelines/``, ``tasks/``, ``envs/``, ``deployments/`` and ``configs/``; the
repository is one. ``embodyflow init`` writes another from the rooms that the wheel carries.
"""

import ast
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from embodyflow import __version__
from embodyflow.errors import ConfigError

ROOMS = ("flows", "pipelines", "tasks", "envs", "deployments", "configs")
PREFECT_YAML = Path("deployments", "prefect.yaml")
"""The file that makes a folder a project."""

VERSION_FILE = "embodyflow.toml"
"""The file in which ``embodyflow init`` records the version that the rooms come from."""

_LANDMARKS = {"pipelines": ["Pipeline"], "tasks": ["generate"]}
"""Names that tell the rooms that every run imports from other modules called ``pipelines`` and ``tasks``."""


def shipped() -> Path:
    """Return the folder of the rooms that this version ships: in the wheel, or the checkout itself."""
    package = Path(__file__).resolve().parent
    template = package / "template"
    return template if template.is_dir() else package.parent


def is_project(folder: Path) -> bool:
    """Return True if the folder is a project."""
    return (folder / PREFECT_YAML).is_file()


def config_folders() -> list[Path]:
    """Return the folders that configurations are read from: the project's own first, then the shipped ones.

    A file of the project replaces the shipped file of the same name.
    """
    ours, theirs = shipped() / "configs", Path.cwd().resolve() / "configs"
    return [theirs, ours] if theirs.is_dir() and is_project(theirs.parent) and theirs != ours else [ours]


def make_importable() -> None:
    """Put the current folder on the import path, where ``python -m`` puts it by itself."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def check_room(room: str, names: Iterable[str] = ()) -> None:
    """Check that a room can be imported, and that no other module of that name hides it.

    The room's source is read, not imported: importing ``tasks`` takes seconds.

    Args:
        room: ``pipelines``, ``tasks`` or ``envs``.
        names: Functions and classes that the room must define.

    Raises:
        ConfigError: The room is missing, or the module found in its place lacks a name.
    """
    found = importlib.util.find_spec(room)
    if found is None:
        raise ConfigError(
            f"{room}: {Path.cwd()} has no room {room}/; run this in a project's folder, or make one with "
            "`embodyflow init <folder>`"
        )
    defined = _defined_in(found.origin)
    for name in (*_LANDMARKS.get(room, ()), *names):
        if defined is not None and name not in defined:
            raise ConfigError(hides_room(room, name))


def hides_room(room: str, name: str) -> str:
    """Return the message for a module that is found in the place of a room but lacks a name."""
    found = importlib.util.find_spec(room)
    place = found and (found.origin or next(iter(found.submodule_search_locations or ()), None))
    return (
        f"{room}:{name}: {place} does not define it; rename that module if it hides the project's room {room}/, or "
        f"copy the room of embodyflow {__version__} from a new project (`embodyflow init <folder>`)"
    )


def older_rooms(root: Path) -> str | None:
    """Return a line that says what to do if the rooms of a project are older than the installed library.

    Args:
        root: Folder of the project; one without ``embodyflow.toml`` keeps its rooms in step by itself.

    Raises:
        ConfigError: ``embodyflow.toml`` holds no version.
    """
    path = root / VERSION_FILE
    if not path.is_file():
        return None
    try:
        version = str(tomllib.loads(path.read_text(encoding="utf-8"))["rooms"]["version"])
        is_older = Version(version) < Version(__version__)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, InvalidVersion) as error:
        raise ConfigError(f"{path}: rooms.version must be a version such as {__version__!r}: {error}") from error
    if not is_older:
        return None
    return (
        f"note: the rooms of this project come from embodyflow {version}, and {__version__} is installed; compare them "
        f"with a new project (`embodyflow init <folder>`), then set rooms.version in {VERSION_FILE}"
    )


def _defined_in(source: str | None) -> set[str] | None:
    """Return the names that a Python file binds; None if they cannot be known without running it."""
    if source is None:  # a folder without __init__.py
        return set()
    if not source.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(source).read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):  # importing it gives a better message
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if names & {"*", "__getattr__"} else names
