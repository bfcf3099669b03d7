"""Reading a Minari data set through Minari itself."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from embodyflow.datasets.dataset import Columns, DatasetEpisode, Feature, FeatureStatistics
from embodyflow.datasets.feature_names import ACTION, IMAGES, STATE
from embodyflow.datasets.packages import require
from embodyflow.errors import ConfigError

METADATA = "data/metadata.json"


class MinariReader:
    """A Minari data set; see :class:`~embodyflow.datasets.dataset.Dataset`.

    Features have LeRobot's names: an observation that is a vector is ``observation.state``, an entry of a dictionary
    ``observation.<key>``, an image ``observation.images.<key>``, the action ``action``. All episodes have one task, the
    id of the data set. There are neither a frame rate nor statistics.

    Args:
        path: Folder of the data set, which has a folder ``data``.

    Raises:
        ConfigError: Minari is not installed, or does not read the data set.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fps: float | None = None
        try:
            self._dataset = require("minari").MinariDataset(path / "data")
            task = json.loads((path / METADATA).read_text()).get("dataset_id")
            lengths = [int(each["total_steps"]) for each in self._episode_metadata()]
        except ConfigError:
            raise
        except Exception as error:  # Minari raises errors of many kinds
            said = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{path}: Minari cannot read it: {said}") from error
        self._places = dict(_places(self._dataset.observation_space, self._dataset.action_space))
        self.features: Mapping[str, Feature] = {name: feature for name, (_, feature) in self._places.items()}
        numbered = enumerate(lengths)
        self.episodes: Sequence[DatasetEpisode] = [DatasetEpisode(index, length, task) for index, length in numbered]

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return ``None``: the format has no statistics."""

    def check(self, episodes: Collection[DatasetEpisode], features: Collection[str]) -> None:
        """Do nothing: the spaces of the data set say what its episodes have."""

    def read(self, episode: DatasetEpisode, features: Collection[str]) -> Columns:
        """Return features of an episode, ``[T, ...]``; the observation after the last action is left out.

        Raises:
            ConfigError: Minari cannot read the episode, or it is shorter than its description says.
        """
        try:
            [found] = self._dataset.iterate_episodes([episode.index])
        except Exception as error:  # Minari and the libraries of its files raise errors of many kinds
            said = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{self.path}: Minari cannot read episode {episode.index}: {said}") from error
        columns: Columns = {}
        for name in features:
            values: Any = {"observations": found.observations, "actions": found.actions}
            for key in self._places[name][0]:
                values = values[key]
            columns[name] = np.asarray(values)[: episode.num_steps]
            if len(columns[name]) < episode.num_steps:
                raise ConfigError(
                    f"{self.path}: {name} of episode {episode.index} has {len(columns[name])} steps, its description "
                    f"says {episode.num_steps}"
                )
            if columns[name].shape[1:] != self.features[name].shape:
                raise ConfigError(
                    f"{self.path}: {name} of episode {episode.index} has {list(columns[name].shape[1:])} numbers a "
                    f"step, its space says {list(self.features[name].shape)}"
                )
        return columns

    def _episode_metadata(self) -> Iterator[Mapping[str, Any]]:
        yield from self._dataset.storage.get_episode_metadata(range(self._dataset.total_episodes))


def _places(
    observations: gym.Space[Any], actions: gym.Space[Any]
) -> Iterator[tuple[str, tuple[tuple[str, ...], Feature]]]:
    """Yield the name of each feature with its keys in an episode and its description."""
    if isinstance(actions, gym.spaces.Box):
        yield ACTION, (("actions",), Feature(actions.shape))
    if isinstance(observations, gym.spaces.Box):
        name = f"{IMAGES}image" if _is_image(observations) else STATE
        yield name, (("observations",), Feature(observations.shape, _is_image(observations)))
    elif isinstance(observations, gym.spaces.Dict):
        yield from _entries(observations, ())


def _entries(spaces: gym.spaces.Dict, above: tuple[str, ...]) -> Iterator[tuple[str, tuple[tuple[str, ...], Feature]]]:
    """Yield the features of a dictionary of observations and of those in it."""
    for key, space in spaces.items():
        keys = (*above, key)
        if isinstance(space, gym.spaces.Dict):
            yield from _entries(space, keys)
        elif isinstance(space, gym.spaces.Box):
            name = f"{IMAGES if _is_image(space) else 'observation.'}{'.'.join(keys)}"
            yield name, (("observations", *keys), Feature(space.shape, _is_image(space)))


def _is_image(space: gym.spaces.Box) -> bool:
    return space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3
