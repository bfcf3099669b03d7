"""Recorded episodes, read back from the folder of a run."""

import shlex
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodyflow.data.padding import PER_TOKEN
from embodyflow.errors import ConfigError, DamageError
from embodyflow.record.run_folder import RunFolder

Array: TypeAlias = NDArray[np.generic]
Episodes: TypeAlias = dict[str, Array]
"""Columns of embodied or agents' rows (:mod:`embodyflow.types`) without images, and ``trained``, bool [N]. Columns that
training added are zero in the other rows."""


def read_episodes(run: RunFolder) -> Iterator[tuple[int, Episodes]]:
    """Yield the iterations whose episodes are kept, oldest first, with their episodes sorted by uid.

    Raises:
        ConfigError: The run keeps no episodes.
        DamageError: A file of them is damaged.
    """
    folders = run.episodes.kept()
    if not folders:
        raise ConfigError(f"{run.path}: has no episodes; runs with rollout.keep_episodes keep them")
    for iteration, folder in folders.items():
        try:
            yield iteration, read_iteration(folder)
        except FileNotFoundError:
            if folder.exists():
                raise
            # The run is still going, and keeps newer ones instead.


def find_episode(run: RunFolder, uid: int) -> tuple[int, Episodes, int]:
    """Return the iteration of an episode, all episodes of that iteration, and the episode's row among them.

    Raises:
        ConfigError: The run does not keep the episode.
    """
    iterations, found = [], []
    for iteration, episodes in read_episodes(run):
        iterations.append(iteration)
        found += [(iteration, episodes, int(row)) for row in np.flatnonzero(episodes["uid"] == uid)]
    if not found:
        raise ConfigError(
            f"uid={uid}: {run.path} has no such episode; it keeps those of iterations {iterations[0]} to "
            f"{iterations[-1]}, and embodyflow episodes {shlex.quote(str(run.path))} lists them"
        )
    # Groups that dynamic sampling leaves over are trained on in the next iteration.
    return next((each for each in found if each[1]["trained"][each[2]]), found[0])


def read_iteration(folder: Path) -> Episodes:
    """Return the episodes in one iteration's folder, sorted by uid."""
    played = _joined(folder, "played-*.npz")
    _, first = np.unique(played["uid"], return_index=True)  # a node that samples again also passes on the rows it keeps
    episodes = {name: column[first] for name, column in played.items()}
    trained = _joined(folder, "trained-*.npz")
    rows = np.searchsorted(episodes["uid"], trained["uid"])
    episodes["trained"] = np.isin(episodes["uid"], trained["uid"])
    num_tokens = episodes["loss_mask"].shape[1] if "loss_mask" in episodes else 0
    for name in trained.keys() - episodes.keys():
        column = trained[name]
        whole = np.zeros((len(episodes["uid"]), *column.shape[1:]), column.dtype)
        whole[rows] = column
        # Language rows are padded to the longest at hand, which may be shorter than the longest one played.
        per_token = name in PER_TOKEN and column.ndim > 1
        episodes[name] = _widen(whole, max(num_tokens, whole.shape[1])) if per_token else whole
    return episodes


OF_EPISODES = {
    "episode_return": "rollout/episode_return",
    "num_steps": "rollout/episode_steps",
    "num_turns": "rollout/turns",
}
"""Columns with one number per episode, and the names of their histograms."""


def histogram_values(folder: Path) -> dict[str, Array]:
    """Return values of one iteration's folder for histograms, each one-dimensional with at least one value.

    They are the columns of :data:`OF_EPISODES` that the episodes have, and the advantages of all tokens inside the mask
    that training used. Other columns are not read.
    """
    played = _joined(folder, "played-*.npz", ("uid", "loss_mask", *OF_EPISODES))
    _, first = np.unique(played["uid"], return_index=True)
    values = {metric: played[column][first] for column, metric in OF_EPISODES.items() if column in played}
    trained = _joined(folder, "trained-*.npz", ("uid", "advantages"))
    if "advantages" in trained:
        rows = first[np.searchsorted(played["uid"][first], trained["uid"])]
        advantages = trained["advantages"]
        mask = played["loss_mask"][rows, : advantages.shape[1]].astype(bool)  # the widest row may not be trained on
        values["advantage/token"] = advantages[mask]
    # An iteration whose groups all have one outcome trains on nothing, and no histogram has no values.
    return {name: column for name, column in values.items() if column.size}


def _joined(folder: Path, pattern: str, names: Collection[str] | None = None) -> Episodes:
    """Return the columns that all files of a pattern have, or those of them with the given names."""
    parts = [_columns(path, names) for path in sorted(folder.glob(pattern))]
    if not parts:
        raise FileNotFoundError(f"{folder / pattern}: no such file")
    common = set.intersection(*(set(part) for part in parts))
    return {name: _stack([part[name] for part in parts]) for name in sorted(common)}


def _columns(path: Path, names: Collection[str] | None) -> Episodes:
    """Return the columns of a file, or those of them with the given names.

    Raises:
        DamageError: The file is damaged; the message names it.
    """
    try:
        with np.load(path) as file:
            columns = {name: file[name] for name in file.files if names is None or name in names}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, TypeError) as error:
        raise DamageError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    if "uid" not in columns:
        raise DamageError(f"{path} is damaged: it has no uid")
    return columns


def _stack(parts: Sequence[Array]) -> Array:
    """Concatenate rows; those of language models have different widths, of which the widest counts."""
    if parts[0].ndim > 1:
        width = max(part.shape[1] for part in parts)
        parts = [_widen(part, width) for part in parts]
    return np.concatenate(parts)


def _widen(rows: Array, width: int) -> Array:
    """Return rows with zeros after their second dimension, up to a width."""
    return np.pad(rows, [(0, 0), (0, width - rows.shape[1])] + [(0, 0)] * (rows.ndim - 2))
