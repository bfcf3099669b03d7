"""The files that a build may copy: those of a folder which its ``.dockerignore`` leaves."""

import os
import re
import shutil
from pathlib import Path, PurePosixPath


class BuildContext:
    """The files of a folder that ``.dockerignore`` leaves.

    Args:
        folder: Folder, with or without a ``.dockerignore``.

    Attributes:
        files: Relative paths of files and symbolic links, sorted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = folder / ".dockerignore"
        patterns = ignored_patterns(ignore.read_text()) if ignore.exists() else []
        found = []
        for place, folders, names in os.walk(folder):
            here = Path(place).relative_to(folder)
            links = [name for name in folders if (Path(place) / name).is_symlink()]
            # Nothing that is copied lies in these, and they are large.
            folders[:] = [name for name in folders if name not in (*links, ".git")]
            found += [here / name for name in (*names, *links)]
        self.files = sorted(path for path in found if not is_ignored(path, patterns))

    def below(self, source: str) -> list[Path]:
        """Return the files at or below a relative path.

        Raises:
            FileNotFoundError: There is none, or all are ignored.
        """
        place = Path(os.path.normpath(source))
        found = [path for path in self.files if path == place or place == Path(".") or place in path.parents]
        if not found:
            raise FileNotFoundError(f"{source}: not in the build context")
        return found

    def copy(self, source: str, destination: Path) -> None:
        """Copy a file to a path, or a folder's content into one, as files of root that keep mode and time.

        An existing destination keeps its owner and mode, as in ``docker build``; folders below it do not.
        """
        origin = Path(os.path.normpath(self.folder / source))
        files = self.below(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir() and not destination.exists():
            destination.mkdir()
            shutil.copystat(origin, destination)
            _give_to_root(destination)
        for path in files:
            relative = (self.folder / path).relative_to(origin)
            target = destination / relative
            _make_folders(origin, destination, relative.parent)
            shutil.copy2(self.folder / path, target, follow_symlinks=False)
            _give_to_root(target)


def ignored_patterns(text: str) -> list[tuple[re.Pattern[str], bool]]:
    """Return the patterns of a ``.dockerignore``, each with True if it ignores and False if it takes back (``!``)."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(_expression(line.removeprefix("!").strip("/")), not line.startswith("!")) for line in lines]


def is_ignored(path: PurePosixPath, patterns: list[tuple[re.Pattern[str], bool]]) -> bool:
    """Return True if the last pattern that matches a path, or a folder above it, ignores it."""
    places = [str(place) for place in (path, *path.parents) if str(place) != "."]
    ignored = False
    for pattern, ignores in patterns:
        if any(pattern.fullmatch(place) for place in places):
            ignored = ignores
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    if re.search(r"[\[\]\\]", pattern):
        raise ValueError(f".dockerignore: {pattern}: of wildcards, *, ** and ? are understood here")
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    found: list[str] = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)
    return re.compile("".join(parts.get(part, re.escape(part)) for part in found))


def _make_folders(origin: Path, destination: Path, relative: Path) -> None:
    """Make the folders of a relative path, with the modes of those that they copy."""
    for place in reversed([relative, *relative.parents][:-1]):
        folder = destination / place
        folder.mkdir(exist_ok=True)
        shutil.copystat(origin / place, folder)
        _give_to_root(folder)


def _give_to_root(path: Path) -> None:
    if os.geteuid() == 0:  # anyone may copy, but nobody else can run a build's commands
        os.chown(path, 0, 0, follow_symlinks=False)
