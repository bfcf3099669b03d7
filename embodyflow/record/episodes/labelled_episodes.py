"""Labelled episodes of a run, by which a success classifier is trained."""

from pathlib import Path

from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import Table
from embodyflow.errors import DamageError
from embodyflow.process.files.durable_files import flush

LABELLED = "labelled"
"""Folder of these files in the folder of a run."""


class LabelledEpisodes:
    """Files of the labelled episodes of each iteration; 0 has the demonstrations.

    An iteration reads the files of those before it and writes its own, so a repeated iteration finds the same episodes.

    Args:
        run_folder: Folder of the run.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / LABELLED

    def keep(self, iteration: int, table: Table) -> None:
        """Write the episodes of an iteration in place of those of an earlier attempt; they survive a power failure."""
        path = self._path(iteration)
        Journal(path).replace(table)
        for each in (path, self._folder, self._folder.parent):
            flush(each)

    def before(self, iteration: int) -> list[Table]:
        """Return the episodes of all iterations before this one, in order.

        Raises:
            DamageError: The file of an iteration is missing or damaged.
        """
        found = [Journal(self._path(index)).read() for index in range(iteration)]
        for index, pieces in enumerate(found):
            if len(pieces) != 1:
                raise DamageError(
                    f"{self._path(index)} is missing or damaged; begin another run, or branch off this one with "
                    "branch.take=weights"
                )
        return [table for [table] in found]

    def _path(self, iteration: int) -> Path:
        return self._folder / f"iteration-{iteration:06d}"
