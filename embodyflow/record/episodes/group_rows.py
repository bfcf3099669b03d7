"""Rows of single groups that are not trained yet, so that a recovered run need not play them again."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from embodyflow.rollouts.streaming.swap_journal import SwapJournal


class GroupRows:
    """The folders of groups, one per node and group, with a file per attempt and version of the policy.

    Args:
        path: Folder of all groups, inside the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, node_id: str, index: int) -> Path:
        """Return the folder of a group."""
        return self.path / node_id / str(index)

    def drop(self, node_id: str, indices: Iterable[int]) -> None:
        """Remove groups that an iteration has trained on."""
        for index in indices:
            if (folder := self.folder(node_id, index)).exists():
                shutil.rmtree(folder)

    def drop_after(self, version: int) -> None:
        """Remove what later versions of the policy played: they may be trained again with another learning rate."""
        for file in self.path.glob("*/*/*.parts"):
            attempt, first = file.name.split(".")[:2]
            swaps = file.with_name(f"{attempt}.{first}.swaps.parts")
            if int(first) > version or (swaps.exists() and SwapJournal(swaps).newest > version):
                for each in file.parent.glob(f"{attempt}.{first}.*"):
                    each.unlink()

    def clear(self) -> None:
        """Remove all groups, at the end of the run."""
        shutil.rmtree(self.path, ignore_errors=True)
