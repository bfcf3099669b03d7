"""Folders with the episodes of an iteration, which :mod:`embodyflow.record.episodes.episode_record` reads."""

import os
from pathlib import Path

from embodyflow.process.files.durable_files import make_folder
from embodyflow.record.iteration_folders import (
    drop,
    dropped_in,
    folder_of,
    folders_in,
    index_of,
    remove,
    unfinished_folder,
)


class EpisodeFolders:
    """Reads and writes the folders of recorded episodes of one run.

    Args:
        path: Folder of all episodes, inside the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, iteration: int) -> Path:
        """Return an empty folder to write an iteration's episodes to; they count after :meth:`commit`.

        Raises:
            FileNotFoundError: The run's folder is gone.
        """
        self.discard(iteration)
        unfinished = unfinished_folder(self.path, iteration)
        make_folder(unfinished, levels=2)
        return unfinished

    def unfinished(self, iteration: int) -> Path:
        """Return the folder of an iteration's episodes before :meth:`commit`; it may not exist."""
        return unfinished_folder(self.path, iteration)

    def discard(self, iteration: int) -> None:
        """Remove an iteration's episodes that do not count yet.

        A rank that still writes finds no folder, rather than one half removed.
        """
        unfinished = unfinished_folder(self.path, iteration)
        if unfinished.exists():
            drop(unfinished)

    def commit(self, iteration: int, keep: int) -> None:
        """Give an iteration's episodes, if there are any, their name; remove all but the newest ``keep``."""
        unfinished, final = unfinished_folder(self.path, iteration), folder_of(self.path, iteration)
        if unfinished.exists():
            remove(final, ignore_errors=True)
            os.replace(unfinished, final)
        for old in list(self.kept().values())[:-keep]:
            drop(old)
        for interrupted in dropped_in(self.path):
            if index_of(interrupted) < iteration:  # later ones may be in the middle of their removal
                remove(interrupted)

    def kept(self) -> dict[int, Path]:
        """Return the folders of all iterations whose episodes are kept, oldest first."""
        return folders_in(self.path)
