"""A simulation of the folders that a power failure may leave, after any step of a process.

The disk guarantees no more than POSIX does: the content of a file is certain once the file was fsynced, and the names
in a folder once the folder was. Everything else may be on disk or not, completely or partially, in any order.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = 0
Tree = dict[str, bytes | None]
"""Content of each path; ``None`` for a folder."""


@dataclass(frozen=True)
class Name:
    """A name in a folder now refers to another file, or is removed. A rename also removes the name ``before``."""

    folder: int
    name: str
    node: int | None
    before: str | None = None
    is_folder: bool = False


@dataclass(frozen=True)
class Write:
    """A file has new content."""

    node: int
    content: bytes


@dataclass(frozen=True)
class Sync:
    """The content of a file, or the names in a folder, are on disk."""

    node: int


@dataclass(frozen=True)
class Promise:
    """From here on the process relies on something being on disk."""

    what: Any


Step = Name | Write | Sync | Promise


class Recorder:
    """Records the steps of this process below a folder, in order, without real flushes.

    The content of files is compared at each step, so consecutive writes count as one, which may be torn.

    Args:
        root: Folder to record.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.steps: list[Step] = []
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._content: dict[int, bytes] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record until the block exits."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "truncate", self._recorded(os.truncate))
            patch.setattr(os, "unlink", self._recorded(os.unlink, self._remove))
            patch.setattr(os, "rmdir", self._recorded(os.rmdir, self._remove))
            patch.setattr(os, "replace", self._recorded(os.replace, self._rename))
            patch.setattr(os, "fsync", self._sync)
            yield
            self._scan()

    def promise(self, what: Any) -> None:
        """Record that the process relies on something from now on."""
        self._scan()
        self.steps.append(Promise(what))

    def _recorded(self, do: Callable[..., None], note: Callable[..., None] | None = None) -> Callable[..., None]:
        def recorded(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            self._scan()
            do(path, *args, **kwargs, **({} if dir_fd is None else {"dir_fd": dir_fd}))
            where = self._find(path, dir_fd)
            if where is not None and note is not None:
                note(*where, *args)

        return recorded

    def _remove(self, folder: int, name: str) -> None:
        del self._names[folder][name]
        self.steps.append(Name(folder, name, None))

    def _rename(self, folder: int, before: str, target: Any) -> None:
        where = self._find(target, None)
        assert where is not None and where[0] == folder, "renamed within a folder"
        node = self._names[folder][where[1]] = self._names[folder].pop(before)
        self.steps.append(Name(folder, where[1], node, before=before))

    def _sync(self, descriptor: int) -> None:
        self._scan()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path == str(self._root):
            self.steps.append(Sync(ROOT))
        elif (where := self._find(path, None)) is not None:
            folder, name = where
            self.steps.append(Sync(self._names[folder][name]))

    def _find(self, path: Any, dir_fd: int | None) -> tuple[int, str] | None:
        """Return folder and name of a path; ``None`` outside the root."""
        whole = Path(os.readlink(f"/proc/self/fd/{dir_fd}"), path) if dir_fd is not None else Path(path).absolute()
        if self._root not in whole.parents:
            return None
        *folders, name = whole.relative_to(self._root).parts
        node = ROOT
        for folder in folders:
            node = self._names[node][folder]
        return node, name

    def _scan(self) -> None:
        self._scan_folder(self._root, ROOT)

    def _scan_folder(self, path: str | Path, folder: int) -> None:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                names = self._names[folder]
                if entry.name not in names:
                    names[entry.name] = node = len(self._content) + len(self._names)
                    if entry.is_dir():
                        self._names[node] = {}
                    else:
                        self._content[node] = b""
                    self.steps.append(Name(folder, entry.name, node, is_folder=entry.is_dir()))
                node = names[entry.name]
                if entry.is_dir():
                    self._scan_folder(entry.path, node)
                elif (content := Path(entry.path).read_bytes()) != self._content[node]:
                    self._content[node] = content
                    self.steps.append(Write(node, content))


@dataclass
class Disk:
    """The certain state of the disk, and the uncertain steps since."""

    kept: dict[int, bytes] = field(default_factory=dict)
    content: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    pending: dict[int, list[Name]] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Apply a step."""
        if isinstance(step, Name):
            self.pending.setdefault(step.folder, []).append(step)
            if step.is_folder and step.node is not None:
                self.folders[step.node] = {}
        elif isinstance(step, Write):
            self.content[step.node] = step.content
        elif isinstance(step, Sync):
            for change in self.pending.pop(step.node, []):
                _apply(change, self.folders[step.node])
            if step.node in self.content:
                self.kept[step.node] = self.content[step.node]

    def left(self, has_name: Callable[[], bool], part: Callable[[bytes, bytes], bytes]) -> Tree:
        """Return the tree after a power failure.

        Args:
            has_name: Returns True if the next uncertain change of a name is on disk.
            part: Returns the remaining content of a file, given its certain and its latest content.
        """
        tree: Tree = {}
        self._fill(tree, ROOT, "", has_name, part)
        return tree

    def _fill(self, tree: Tree, folder: int, path: str, has_name: Any, part: Any) -> None:
        names = dict(self.folders[folder])
        for change in self.pending.get(folder, []):
            if has_name():
                _apply(change, names)
        for name, node in names.items():
            if node in self.folders:
                tree[path + name] = None
                self._fill(tree, node, f"{path}{name}/", has_name, part)
            else:
                kept, content = self.kept.get(node, b""), self.content.get(node, b"")
                tree[path + name] = content if kept == content else part(kept, content)


def _apply(change: Name, names: dict[str, int]) -> None:
    if change.before is not None:
        names.pop(change.before, None)
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node


def trees_after(disk: Disk, rng: random.Random, num_draws: int) -> list[Tree]:
    """Return trees that a power failure now may leave: the extremes and ``num_draws`` random ones."""

    def torn(kept: bytes, content: bytes) -> bytes:
        return content[: rng.randint(_certain(kept, content), len(content))]

    def holed(kept: bytes, content: bytes) -> bytes:
        """Blocks reach the disk in any order: the end is there, the part before it is not."""
        start = _certain(kept, content)
        end = rng.randint(start, len(content))
        return content[:start] + bytes(end - start) + content[end:]

    def drawn(kept: bytes, content: bytes) -> bytes:
        return rng.choice([lambda: kept, lambda: content, lambda: torn(kept, content), lambda: holed(kept, content)])()

    def all_of_it(kept: bytes, content: bytes) -> bytes:
        return content

    def nothing_new(kept: bytes, content: bytes) -> bytes:
        return kept

    names, parts = {True: lambda: True, False: lambda: False}, (all_of_it, nothing_new, torn, holed)
    extremes = [disk.left(names[there], part) for there in (True, False) for part in parts]
    return extremes + [disk.left(lambda: rng.random() < 0.5, drawn) for _ in range(num_draws)]


def _certain(kept: bytes, content: bytes) -> int:
    """Return how many bytes of the latest content are certain: the old content if it was appended to, else 0."""
    return len(kept) if content.startswith(kept) else 0


def lay_out(tree: Tree, root: Path) -> None:
    """Create the folder that a power failure left."""
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
