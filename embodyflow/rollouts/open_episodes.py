"""Storage of the episodes that an iteration of a control task leaves open, from which any worker can continue."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embodyflow.data.ragged import Ragged
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import Table
from embodyflow.errors import DamageError
from embodyflow.process.files.durable_files import flush, make_folder
from embodyflow.simulation.episode_history import Array, EpisodeHistory


@dataclass(frozen=True)
class OpenEpisodes:
    """State of n environments.

    Attributes:
        histories: Histories of the open episodes.
        num_episodes: Number of episodes of each environment so far, including the open one, int64 ``[n]``.
        returns: Sums of the open episodes' rewards, float64 ``[n]``.
        running_returns: Discounted sums of the same rewards, float64 ``[n]``; ``None`` in files of earlier versions.
        lengths: Numbers of steps of the open episodes, int64 ``[n]``. The history of a batch that resets itself may
            hold earlier episodes too.
    """

    histories: Sequence[EpisodeHistory]
    num_episodes: Array
    returns: Array
    running_returns: Array | None
    lengths: Array


class OpenEpisodesFolder:
    """Open episodes of one rank after each of the last iterations, in one file per iteration.

    Args:
        folder: Folder shared by all ranks.
        rank: Rank that the files belong to.
        keep: Number of iterations to keep.
    """

    def __init__(self, folder: Path, rank: int, keep: int) -> None:
        self._folder, self._rank, self._keep = folder, rank, keep

    def write(self, iteration: int, episodes: OpenEpisodes) -> None:
        """Write the open episodes of an iteration and flush them to disk; delete the oldest file."""
        path = self._path(iteration)
        make_folder(self._folder, levels=1)
        path.unlink(missing_ok=True)
        Journal(path).append(_table(episodes))
        flush(path)
        flush(self._folder)
        self._path(iteration - self._keep).unlink(missing_ok=True)

    def read(self, iteration: int) -> OpenEpisodes:
        """Return the open episodes that :meth:`write` stored.

        Raises:
            DamageError: The file is missing or incomplete.
        """
        pieces = Journal(self._path(iteration)).read()
        if len(pieces) != 1:
            raise DamageError(f"{self._path(iteration)}: must hold the open episodes of iteration {iteration}")
        return _episodes(pieces[0])

    def _path(self, iteration: int) -> Path:
        return self._folder / f"iteration-{iteration:06d}.{self._rank}.rows"


def _table(episodes: OpenEpisodes) -> Table:
    actions = [history.actions for history in episodes.histories]
    running = episodes.running_returns
    columns: Table = {} if running is None else {"running_returns": running}
    return columns | {
        "seed": np.array([history.seed for history in episodes.histories], np.int64),
        "actions": Ragged(np.concatenate(actions), np.array([len(each) for each in actions], np.int64)),
        "num_episodes": episodes.num_episodes,
        "returns": episodes.returns,
        "lengths": episodes.lengths,
    }


def _episodes(table: Table) -> OpenEpisodes:
    actions, num_episodes, returns = table["actions"], table["num_episodes"], table["returns"]
    running = table.get("running_returns")
    assert isinstance(num_episodes, np.ndarray) and isinstance(returns, np.ndarray)
    assert running is None or isinstance(running, np.ndarray)
    seeds = np.asarray(table["seed"]).tolist()
    histories = [EpisodeHistory(seed, None, actions[row]) for row, seed in enumerate(seeds)]
    earlier = np.array([len(history.actions) for history in histories])  # files of earlier versions have no lengths
    lengths = table.get("lengths", earlier)
    assert isinstance(lengths, np.ndarray)
    return OpenEpisodes(histories, num_episodes, returns, running, lengths)
