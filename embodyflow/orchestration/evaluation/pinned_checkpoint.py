"""The checkpoint that an evaluation plays: chosen once, and kept in the evaluation's folder until it is complete.

A run that is still training may commit newer checkpoints and remove old ones at any time.
"""

import shutil
from pathlib import Path

from embodyflow.errors import ConfigError
from embodyflow.process.files.durable_files import write_durably
from embodyflow.record.run_folder import RunFolder

NOTE = "iteration"
"""File in an evaluation's folder with the iteration of the pinned checkpoint."""


def pinned_iteration(folder: Path) -> int | None:
    """Return the iteration of the checkpoint that is pinned in an evaluation's folder; ``None`` before that."""
    note = folder / NOTE
    return int(note.read_text()) if note.is_file() else None


def pinned_run(folder: RunFolder) -> RunFolder:
    """Return a run folder with the pinned checkpoints only."""
    return RunFolder(folder.path / "evaluated")


def pin_checkpoint(folder: RunFolder, trained: RunFolder, iteration: int) -> None:
    """Pin a checkpoint, and that of iteration 0, which is loaded with it. Hard links avoid copies of the files.

    Args:
        folder: Folder of the evaluation, locked by the caller.
        trained: Folder of the run.
        iteration: Iteration of the checkpoint.

    Raises:
        ConfigError: The run no longer has the checkpoint.
    """
    if pinned_iteration(folder.path) is not None and pinned_run(folder).path.exists():
        return
    unpin_checkpoint(folder)
    aside = RunFolder(folder.path / ".evaluated")
    shutil.rmtree(aside.path, ignore_errors=True)
    aside.path.mkdir()
    try:
        for each in {0, iteration}:
            aside.checkpoints.adopt(each, trained.checkpoints)
            for name in aside.checkpoints.facts(each)["files"]:
                (aside.checkpoints.folder(each) / name).stat()
    except OSError as error:  # missing, or removed at this moment
        raise ConfigError(
            f"policy={trained.path}: the checkpoint of iteration {iteration} is gone; choose another run_id"
        ) from error
    aside.path.rename(pinned_run(folder).path)
    write_durably(folder.path / NOTE, str(iteration))


def unpin_checkpoint(folder: RunFolder) -> None:
    """Remove the pinned checkpoints."""
    shutil.rmtree(pinned_run(folder).path, ignore_errors=True)
