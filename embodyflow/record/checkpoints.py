"""Checkpoints of a run: complete folders that survive a power failure, with a digest of every file."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from embodyflow.errors import DamageError, DiskFullError
from embodyflow.process.files.durable_files import flush, link_or_copy, make_folder, write_atomically
from embodyflow.record.iteration_folders import drop, dropped_in, folder_of, folders_in, remove, unfinished_folder


class Checkpoints:
    """Reads and writes the checkpoints of one run.

    A checkpoint counts once :meth:`commit` has given its folder its name. Iteration 0 is the reference policy.

    Args:
        path: Folder of all checkpoints, inside the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, iteration: int) -> Path:
        """Return the folder of a committed checkpoint."""
        return folder_of(self.path, iteration)

    def committed(self) -> list[int]:
        """Return the iterations with a committed checkpoint, in order."""
        return list(folders_in(self.path))

    def facts(self, iteration: int) -> dict[str, Any]:
        """Return the facts that a checkpoint was committed with, and ``files``, the digests of its files.

        Raises:
            FileNotFoundError: The checkpoint has no ``commit.json``.
            ValueError: ``commit.json`` does not hold facts.
        """
        facts: Any = json.loads((self.folder(iteration) / "commit.json").read_text())
        if not isinstance(facts, dict) or not isinstance(facts.get("files"), dict):
            raise ValueError("it holds no facts")
        return facts

    def weights_digest(self, iteration: int) -> str | None:
        """Return the SHA-256 of a checkpoint's weights; ``None`` if it is damaged, which :meth:`verify` explains."""
        try:
            return str(self.facts(iteration)["weights_digest"])
        except (FileNotFoundError, IsADirectoryError, ValueError, KeyError):
            return None

    def begin(self, iteration: int) -> Path:
        """Return an empty folder to write a checkpoint to; it counts after :meth:`commit`.

        Raises:
            DiskFullError: The disk has no room for a checkpoint as large as the last.
            FileNotFoundError: The run's folder is gone.
        """
        make_folder(self.path, levels=1)
        unfinished = unfinished_folder(self.path, iteration)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        self.require_room()
        return unfinished

    def require_room(self, freed: int = 0) -> None:
        """Check that the disk has room for another checkpoint.

        Args:
            freed: Bytes that will be free by the time it is written.

        Raises:
            DiskFullError: The disk has no room for a checkpoint as large as the last.
        """
        if (needed := self.newest_bytes()) is not None:
            free = shutil.disk_usage(self.path.parent).free + freed
            if free < needed:
                raise DiskFullError(
                    f"{self.path}: a checkpoint takes {needed / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
                    f"make room and resume={self.path.parent.name}, or lower trainer.keep_checkpoints"
                )

    def newest_bytes(self) -> int | None:
        """Return the size of the newest checkpoint; ``None`` without one."""
        done = self.committed()
        return _size(self.folder(done[-1])) if done else None

    def unfinished_bytes(self, iteration: int) -> int:
        """Return the size of a checkpoint that was begun and not committed; :meth:`begin` removes it."""
        return _size(unfinished_folder(self.path, iteration))

    def commit(self, iteration: int, facts: dict[str, Any], keep: int) -> None:
        """Give a checkpoint its name in one step; remove all others but the first and the newest ``keep``.

        The files are on disk before the name is.
        """
        unfinished, final = unfinished_folder(self.path, iteration), self.folder(iteration)
        digests = {}
        for file in _files(unfinished):
            digests[str(file.relative_to(unfinished))] = _flush_and_digest(file)
        write_atomically(unfinished / "commit.json", json.dumps(facts | {"files": digests}, indent=2))
        for folder in (*filter(Path.is_dir, unfinished.rglob("*")), unfinished):
            flush(folder)
        remove(final, ignore_errors=True)
        os.replace(unfinished, final)
        flush(self.path)
        # Iteration 0 is the reference policy: a resumed run needs it.
        for old in self.committed()[1:-keep]:
            drop(self.folder(old))
        for interrupted in dropped_in(self.path):
            remove(interrupted)

    def adopt(self, iteration: int, other: "Checkpoints") -> None:
        """Take a committed checkpoint of another folder in one step; hard links avoid copies of the files."""
        make_folder(self.path, levels=1)
        unfinished, final = unfinished_folder(self.path, iteration), self.folder(iteration)
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(other.folder(iteration), unfinished, copy_function=link_or_copy)
        remove(final, ignore_errors=True)
        os.replace(unfinished, final)
        flush(self.path)

    def verify(self, iteration: int) -> None:
        """Compare a checkpoint's files with their digests.

        Raises:
            DamageError: A file is missing or changed; the message names it.
        """
        folder = self.folder(iteration)
        try:
            digests = self.facts(iteration)["files"]
        except (FileNotFoundError, IsADirectoryError, ValueError) as error:  # others say nothing about the content
            raise DamageError(f"{folder / 'commit.json'} is missing or damaged") from error
        for name, digest in digests.items():
            if not (folder / name).is_file() or _digest(folder / name) != digest:
                raise DamageError(f"{folder / name} is missing or damaged")

    def drop(self, iteration: int) -> None:
        """Remove a checkpoint; its iteration must be repeated."""
        drop(self.folder(iteration))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_and_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
