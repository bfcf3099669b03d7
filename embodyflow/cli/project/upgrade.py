"""``embodyflow init --upgrade``: bring the rooms of a project to the installed version, and keep the user's changes."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import Version

from embodyflow import __version__
from embodyflow.cli.project.init import digest, project_files, record_of
from embodyflow.errors import ConfigError
from embodyflow.process.files.durable_files import write_atomically
from embodyflow.project import VERSION_FILE, RoomsRecord
from embodyflow.stack.stack_folder import StackFolder

Kind = Literal["updated", "new", "differs", "deleted", "dropped"]

NEW = ".new"
"""Suffix of a new file beside the user's own of that name. Neither Python nor Hydra reads such a file."""

MEANINGS: dict[Kind, str] = {
    "updated": "",
    "new": "",
    "differs": "yours is kept, the new one is {path}" + NEW,
    "deleted": "has changed; you deleted yours, so it is left out",
    "dropped": "is no longer part of embodyflow; delete it if nothing of yours uses it",
}
"""What the user reads about each kind of change."""


@dataclass(frozen=True)
class Change:
    """A file that differs between the version that wrote a project and the installed one.

    Attributes:
        path: Path of the file in the project.
        kind: ``updated`` if the user left the file as it was written; ``new`` if the project has none; ``differs`` if
            the user changed it, or has an own file of that name; ``deleted`` if the user deleted it; ``dropped`` if
            the installed version ships it no more.
    """

    path: Path
    kind: Kind

    def line(self) -> str:
        """Return the change as a line for the user."""
        meaning = MEANINGS[self.kind].format(path=self.path)
        return f"{self.kind:<8}  {self.path}{f': {meaning}' if meaning else ''}"


def upgrade(root: Path) -> int:
    """Bring a project to the installed version, and print a line for each file that is concerned; return the exit code.

    A file that the user did not change is replaced. Beside one that the user changed, the new file is written with the
    suffix ``.new``. Files that are the same in both versions are left alone.

    Args:
        root: Folder of the project.

    Raises:
        ConfigError: The folder is no project of ``embodyflow init``, its rooms are newer than the library, its stack
            is up, or a file cannot be read or written. An upgrade that was interrupted can be repeated.
    """
    root = root.resolve()
    record = _record(root)
    files = project_files()
    with StackFolder(root).locked():
        try:
            changes = list(plan_upgrade(root, files, record.digests))
            _apply(root, files, changes)
            write_atomically(root / VERSION_FILE, record_of(files).text())
        except OSError as error:
            raise ConfigError(f"{root}: cannot be upgraded: {error.strerror}: {error.filename}") from error
    print(*(change.line() for change in changes), sep="\n", end="\n" if changes else "")
    print(f"{root}: a project for embodyflow {__version__}; its rooms came from {record.version}")
    if differing := [change.path for change in changes if change.kind == "differs"]:
        example = shlex.quote(str(root / differing[0]))
        print(f"next: compare yours with the {NEW} files, `diff -u {example} {example}{NEW}`, then delete those")
    return 0


def plan_upgrade(root: Path, files: Mapping[Path, str], recorded: Mapping[str, str]) -> Iterator[Change]:
    """Yield the changes that an upgrade makes, or leaves to the user, by path.

    Args:
        root: Folder of the project.
        files: Files of a new project, as :func:`embodyflow.cli.project.init.project_files` returns them.
        recorded: SHA-256 of each file as the earlier version shipped it; without an entry the user may have changed it.

    Raises:
        OSError: A file cannot be read.
    """
    for path, text in sorted(files.items()):
        before, after = recorded.get(str(path)), digest(text.encode())
        if before == after:
            continue
        if not (root / path).exists():
            yield Change(path, "new" if before is None else "deleted")
        elif (present := digest((root / path).read_bytes())) != after:
            yield Change(path, "updated" if present == before else "differs")
    for name in sorted(recorded.keys() - {str(path) for path in files}):
        if (root / name).exists():
            yield Change(Path(name), "dropped")


def _record(root: Path) -> RoomsRecord:
    record = RoomsRecord.read(root)
    if record is None:
        raise ConfigError(f"{root}: has no {VERSION_FILE}; allowed is a project that `embodyflow init` made")
    if record.version > Version(__version__):
        raise ConfigError(
            f"{root}: its rooms come from embodyflow {record.version}, and {__version__} is installed; install "
            f"embodyflow {record.version} or newer"
        )
    return record


def _apply(root: Path, files: Mapping[Path, str], changes: list[Change]) -> None:
    for change in changes:
        target = root / change.path
        if change.kind == "differs":
            target = target.with_name(target.name + NEW)
        elif change.kind not in ("updated", "new"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, files[change.path])
