"""A data set of demonstrations, whatever its format."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

RELATIVE_ROUNDING = 1e-4
"""Largest relative error of statistics in the files of a data set, which may be computed in float32."""

Columns = dict[str, NDArray[Any]]
"""Arrays by name, ``[T, ...]`` for an episode of T steps."""


@dataclass(frozen=True)
class Feature:
    """What a data set holds for every step under one name.

    Attributes:
        shape: Shape of one step; of an image ``(H, W, 3)``.
        is_image: Whether it is an image, uint8.
        is_text: Whether it holds something other than numbers, such as text.
    """

    shape: tuple[int, ...]
    is_image: bool = False
    is_text: bool = False


@dataclass(frozen=True)
class DatasetEpisode:
    """An episode of a data set.

    Attributes:
        index: Number of the episode in the data set.
        num_steps: T, steps of the episode.
        task: Text of its task; ``None`` if it has none or several.
    """

    index: int
    num_steps: int
    task: str | None


@dataclass(frozen=True)
class FeatureStatistics:
    """Statistics of a feature over all steps of a data set.

    Attributes:
        count: Number of steps.
        mean, std: Mean and standard deviation, float64 ``[D]``.
        low, high: Smallest and largest values, float64 ``[D]``.
        q01, q99: 1% and 99% quantiles, float64 ``[D]``; ``None`` where the data set has none.
    """

    count: int
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    q01: NDArray[np.float64] | None = None
    q99: NDArray[np.float64] | None = None

    def excludes(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return True for values ``[..., D]`` that lie beyond the smallest or the largest one by more than rounding."""
        rounding = RELATIVE_ROUNDING * np.maximum(np.abs(self.low), np.abs(self.high))
        beyond: NDArray[np.bool_] = (values < self.low - rounding) | (values > self.high + rounding)
        return beyond


class Dataset(Protocol):
    """A data set in a folder. Its errors are :class:`~embodyflow.errors.ConfigError` and begin with the folder.

    Attributes:
        path: Folder of the data set.
        fps: Frames per second; ``None`` if the format does not record them.
        features: Features by name.
        episodes: Episodes in the order of their indices.
    """

    path: Path
    fps: float | None
    features: Mapping[str, Feature]
    episodes: Sequence[DatasetEpisode]

    def statistics(self, feature: str) -> FeatureStatistics | None:
        """Return the statistics that the data set holds of a feature; ``None`` without them.

        Raises:
            ConfigError: They are damaged.
        """

    def check(self, episodes: Collection[DatasetEpisode], features: Collection[str]) -> None:
        """Check that the files of episodes exist and have the features, without decoding images.

        Raises:
            ConfigError: A file is missing or damaged, or does not fit the description of the data set.
        """

    def read(self, episode: DatasetEpisode, features: Collection[str]) -> Columns:
        """Return features of an episode, ``[T, ...]``; images are uint8 ``[T, H, W, 3]``.

        Raises:
            ConfigError: A file is missing or damaged, or does not fit the description of the data set.
        """
