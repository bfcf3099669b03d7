"""The checkpoint that an evaluation plays: chosen once, and kept in the evaluation's folder while it is played.

A run that still trains commits newer ones, and removes old ones, while the evaluation's workers start.
"""

import os
import shutil
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.process.durable_files import write_durably
from embodyflow.record.run_folder import RunFolder

NOTE = "iteration"
"""The file in an evaluation's folder that says whose checkpoint it plays."""


def chosen(folder: Path) -> int | None:
    """Return the iteration whose checkpoint an evaluation plays; ``None`` where none has been kept yet."""
    note = folder / NOTE
    return int(note.read_text()) if note.is_file() else None


def kept(folder: RunFolder) -> RunFolder:
    """Return what holds the checkpoints that an evaluation plays, by the same methods as their run."""
    return RunFolder(folder.path / "evaluated")


def keep(folder: RunFolder, trained: RunFolder, iteration: int) -> None:
    """Keep a checkpoint, and that of iteration 0 which is read with it: links cost no room as long as the run has it.

    Args:
        folder: of the evaluation, locked by the caller.
        trained: the run.
        iteration: what :func:`chosen` says from now on.

    Raises:
        ConfigError: the run has no such checkpoint any more.
    """
    if chosen(folder.path) is not None and kept(folder).path.exists():
        return
    drop(folder)
    aside = RunFolder(folder.path / ".evaluated")
    shutil.rmtree(aside.path, ignore_errors=True)
    try:
        for each in {0, iteration}:
            shutil.copytree(trained.checkpoints.folder(each), aside.checkpoints.folder(each), copy_function=_link)
            for name in aside.checkpoints.facts(each)["files"]:
                (aside.checkpoints.folder(each) / name).stat()
    except OSError as error:  # missing, or being removed just now
        raise ConfigError(
            f"policy={trained.path}: the checkpoint of iteration {iteration} is gone; choose another run_id"
        ) from error
    aside.path.rename(kept(folder).path)
    write_durably(folder.path / NOTE, str(iteration))


def drop(folder: RunFolder) -> None:
    """Remove what is kept: the evaluation is complete."""
    shutil.rmtree(kept(folder).path, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, or another user's
        shutil.copy2(source, target)
