"""The folders of a project: its own rooms, and the rooms that the package ships.

A project is a folder with ``flows/``, ``pipelines/``, ``tasks/``, ``envs/``, ``deployments/`` and ``configs/``; the
repository is one. ``embodyflow init`` writes another from the rooms that the wheel carries.
"""

import ast
import importlib.util
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from embodyflow import __version__
from embodyflow.errors import ConfigError

ROOMS = ("flows", "pipelines", "tasks", "envs", "deployments", "configs")
PREFECT_YAML = Path("deployments", "prefect.yaml")
"""The file that makes a folder a project."""

VERSION_FILE = "embodyflow.toml"
"""The file in which ``embodyflow init`` records what the rooms come from."""

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
    """Put the current folder on the import path, where ``python -m`` puts it by itself.

    Raises:
        ConfigError: The current folder was removed.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError("the current folder was removed; change to one that exists") from error
    if here not in sys.path:
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
        f"get the room of embodyflow {__version__} by `embodyflow init --upgrade`"
    )


@dataclass(frozen=True)
class RoomsRecord:
    """What ``embodyflow.toml`` records of a project's rooms.

    Attributes:
        version: Version of embodyflow that the rooms come from.
        digests: SHA-256 of each file as that version shipped it, by its path in the project; empty in projects of
            versions that recorded none.
    """

    version: Version
    digests: Mapping[str, str]

    @classmethod
    def read(cls, root: Path) -> "RoomsRecord | None":
        """Return the record of the project in ``root``; ``None`` if it has none, as the repository itself.

        Raises:
            ConfigError: ``embodyflow.toml`` cannot be read as a record.
        """
        path = root / VERSION_FILE
        if not path.is_file():
            return None
        try:
            rooms = tomllib.loads(path.read_text(encoding="utf-8"))["rooms"]
            return cls(Version(str(rooms["version"])), {str(k): str(v) for k, v in rooms.get("files", {}).items()})
        except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{path}: rooms.version must be a version such as {__version__!r}: {error}") from error

    def text(self) -> str:
        """Return the record as the content of ``embodyflow.toml``."""
        lines = [f"{json.dumps(path)} = {json.dumps(digest)}\n" for path, digest in sorted(self.digests.items())]
        return (
            "# Written by `embodyflow init`: the version of embodyflow that these files come from, and the SHA-256 of\n"
            "# each as it was shipped. `embodyflow init --upgrade` reads and updates both.\n"
            f'[rooms]\nversion = "{self.version}"\n\n[rooms.files]\n{"".join(lines)}'
        )


def rooms_note(root: Path) -> str | None:
    """Return a line that says what to do if a project's rooms and the installed library differ in version.

    Args:
        root: Folder of the project; one without ``embodyflow.toml`` keeps its rooms in step by itself.

    Raises:
        ConfigError: ``embodyflow.toml`` cannot be read as a record.
    """
    record, installed = RoomsRecord.read(root), Version(__version__)
    if record is None or record.version == installed:
        return None
    remedy = (
        "`embodyflow init --upgrade` writes the new rooms and keeps your changes"
        if record.version < installed
        else f"install embodyflow {record.version} or newer"
    )
    return (
        f"note: the rooms of this project come from embodyflow {record.version}, and {installed} is installed; {remedy}"
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
