"""Rows of iterations that are not committed yet, so that a resumed run need not repeat the nodes that made them."""

import shutil
from pathlib import Path

from embodyflow.process.files.durable_files import flush
from embodyflow.record.iteration_folders import folder_of, folders_in


class StageRows:
    """The folders in which nodes keep their rows, one per iteration and node.

    A node's folder has one ``<rank>.rows`` per rank; ``.parts`` while it is made; and ``.surplus``, the rows that the
    previous iteration left over.

    Args:
        path: Folder of all stages, inside the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, iteration: int, node_id: str) -> Path:
        """Return the folder for the rows of a node."""
        return folder_of(self.path, iteration) / node_id

    def drop(self, iteration: int, keep: int) -> None:
        """Remove the rows of a committed iteration.

        Its surplus rows stay as long as a checkpoint is kept from which the iteration may have to be repeated.

        Args:
            iteration: Index of the iteration.
            keep: How many of the newest checkpoints are kept.
        """
        done = folder_of(self.path, iteration)
        _drop_all_but_surplus(done)
        for index, folder in folders_in(self.path).items():
            if index <= iteration - keep or (folder == done and not any(done.glob("*/*"))):
                shutil.rmtree(folder)

    def remove(self, iteration: int) -> None:
        """Remove all rows of an iteration."""
        shutil.rmtree(folder_of(self.path, iteration), ignore_errors=True)

    def drop_after(self, iteration: int) -> None:
        """Remove the rows of all later iterations: they were made with weights that no longer exist.

        The surplus rows that this iteration has left to the next one stay: a run that reads its rows from disk would
        not leave them again.
        """
        for index, folder in folders_in(self.path).items():
            if index == iteration + 1:
                _drop_all_but_surplus(folder)
            elif index > iteration:
                shutil.rmtree(folder)

    def drop_segments(self, iteration: int, keep: int) -> None:
        """Remove an iteration's rows, and the journals of its segments from ``keep`` on, which may get other weights.

        Args:
            iteration: Index of the iteration.
            keep: Number of segments that the committed versions of the policy sampled.
        """
        for folder in folder_of(self.path, iteration).glob("*"):
            for path in [*folder.glob("*.rows"), *folder.glob("*.parts")]:
                if path.suffix == ".rows" or int(path.stem.partition(".")[2]) >= keep:
                    path.unlink()
            flush(folder)


def _drop_all_but_surplus(folder: Path) -> None:
    for path in folder.glob("*/*"):
        if path.suffix != ".surplus":
            path.unlink()
