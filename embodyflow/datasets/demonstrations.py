"""The demonstrations that a warm start takes from a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from embodyflow.datasets.dataset import Columns, Dataset, DatasetEpisode, FeatureStatistics
from embodyflow.datasets.feature_names import SUCCESS
from embodyflow.errors import ConfigError


@dataclass(frozen=True)
class Column:
    """A column of demonstrations and what it is made of.

    Attributes:
        features: Features of the data set, joined in this order.
        shape: Shape of one step; of an image ``(H, W, 3)``.
        dtype: Dtype of the column.
    """

    features: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_image(self) -> bool:
        """Whether the column holds images."""
        return len(self.shape) == 3


class DatasetDemonstrations:
    """Columns of episodes of a data set, as an environment and a policy have them.

    Args:
        dataset: Data set to read.
        columns: Columns by name.

    Raises:
        ConfigError: A column does not fit the data set; the message begins with a key of the configuration.
    """

    def __init__(self, dataset: Dataset, columns: Mapping[str, Column]) -> None:
        self._dataset, self._columns = dataset, columns
        for name, column in columns.items():
            self._check_column(name, column)

    @property
    def fps(self) -> float | None:
        """Frames per second of the data set; ``None`` if its format does not record them."""
        return self._dataset.fps

    def choose(self, task: str, number: int) -> Sequence[DatasetEpisode]:
        """Return the first ``number`` episodes of a task.

        Raises:
            ConfigError: The data set has fewer.
        """
        found = [episode for episode in self._dataset.episodes if episode.task == task]
        if not found:
            others = sorted({episode.task for episode in self._dataset.episodes if episode.task is not None})
            shown = ", ".join(map(repr, others[:5])) + (f" and {len(others) - 5} more" if others[5:] else "")
            raise ConfigError(
                f"warm_start.dataset.tasks: the data set has no episodes of the task {task!r}; it has {shown or 'none'}"
            )
        if number > len(found):
            raise ConfigError(
                f"warm_start.num_demos={number}: allowed are 1 to {len(found)}, the data set's episodes of {task!r}"
            )
        for episode in found[:number]:
            if episode.num_steps < 1:
                raise ConfigError(f"warm_start.dataset={self._dataset.path}: episode {episode.index} has no steps")
        return found[:number]

    def check(self, episodes: Sequence[DatasetEpisode]) -> None:
        """Check the files of episodes and read their numbers, but no images.

        Raises:
            ConfigError: A file is missing or damaged, or does not fit the description of the data set, or a number is
                NaN or inf, or does not fit the dtype of its column.
        """
        try:
            self._dataset.check(episodes, self._features)
        except ConfigError as error:
            raise ConfigError(f"warm_start.dataset={error}") from error
        numbers = {name: column for name, column in self._columns.items() if not column.is_image}
        for episode in episodes:
            self._read(episode, numbers)

    def failed(self, episodes: Sequence[DatasetEpisode]) -> list[DatasetEpisode]:
        """Return the episodes without a step that succeeds, if the data set has LeRobot's ``next.success``.

        Raises:
            ConfigError: See :meth:`read`.
        """
        about = self._dataset.features.get(SUCCESS)
        if about is None or about.is_text or about.is_image:
            return []
        column = {SUCCESS: Column((SUCCESS,), about.shape, np.dtype(np.float64))}
        return [episode for episode in episodes if not self._read(episode, column)[SUCCESS].any()]

    def read(self, episode: DatasetEpisode) -> Columns:
        """Return the columns of an episode, ``[T, ...]``.

        Raises:
            ConfigError: A file is missing or damaged, or a number is NaN or inf, or does not fit the dtype of its
                column.
        """
        return self._read(episode, self._columns)

    def _read(self, episode: DatasetEpisode, columns: Mapping[str, Column]) -> Columns:
        try:
            values = self._dataset.read(episode, _features(columns))
        except ConfigError as error:
            raise ConfigError(f"warm_start.dataset={error}") from error
        return {name: self._joined(episode, column, values) for name, column in columns.items()}

    def mean(self, name: str, episodes: Sequence[DatasetEpisode]) -> NDArray[np.float64]:
        """Return the mean of a column of vectors over the steps of episodes, float64 ``[D]``.

        Raises:
            ConfigError: See :meth:`read`.
        """
        column = {name: self._columns[name]}
        parts = [self._read(episode, column)[name] for episode in episodes]
        mean: NDArray[np.float64] = np.concatenate([part.reshape(len(part), -1) for part in parts]).mean(0, np.float64)
        return mean

    def statistics(self, name: str) -> FeatureStatistics:
        """Return the data set's statistics of a column of vectors.

        Raises:
            ConfigError: The data set has none of a feature.
        """
        parts = []
        for feature in self._columns[name].features:
            part = self._dataset.statistics(feature)
            if part is None or part.mean.shape != (self._size(feature),):
                raise ConfigError(
                    f"warm_start.dataset={self._dataset.path}: has no statistics of {feature}; allowed without them is "
                    "warm_start.dataset.statistics=demonstrations"
                )
            parts.append(part)
        joined = (np.concatenate([getattr(part, each) for part in parts]) for each in ("mean", "std", "low", "high"))
        return FeatureStatistics(parts[0].count, *joined)

    def check_statistics(self, name: str, episodes: Sequence[DatasetEpisode]) -> None:
        """Check that no number of episodes in a column of vectors lies beyond the data set's own minimum and maximum.

        Statistics of other numbers, such as those before the actions were converted, would normalise wrongly.

        Raises:
            ConfigError: One does; see also :meth:`statistics` and :meth:`read`.
        """
        found, column = self.statistics(name), self._columns[name]
        for episode in episodes:
            values = self._read(episode, {name: column})[name].reshape(episode.num_steps, -1).astype(np.float64)
            beyond = found.excludes(values)
            if beyond.any():
                t, k = np.argwhere(beyond)[0].tolist()
                raise ConfigError(
                    f"warm_start.dataset={self._dataset.path}: dimension {k} of {' + '.join(column.features)} is "
                    f"{values[t, k]:g} in episode {episode.index}, but its statistics say {found.low[k]:g} to "
                    f"{found.high[k]:g}, so they are those of other numbers; allowed without them is "
                    "warm_start.dataset.statistics=demonstrations"
                )

    def quantiles(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the data set's 1% and 99% quantiles of a column of vectors.

        Raises:
            ConfigError: The data set has none of a feature.
        """
        low, high = [], []
        for feature in self._columns[name].features:
            part = self._dataset.statistics(feature)
            if part is None or part.q01 is None or part.q99 is None:
                raise ConfigError(
                    f"warm_start.dataset={self._dataset.path}: has no quantiles q01 and q99 of {feature}, by which the "
                    "policy normalises; allowed without them is warm_start.dataset.statistics=demonstrations"
                )
            low.append(part.q01)
            high.append(part.q99)
        return np.concatenate(low), np.concatenate(high)

    @property
    def _features(self) -> list[str]:
        return _features(self._columns)

    def _size(self, feature: str) -> int:
        return int(np.prod(self._dataset.features[feature].shape))

    def _check_column(self, name: str, column: Column) -> None:
        key, features = f"warm_start.dataset.columns.{name}", self._dataset.features
        for feature in column.features:
            if feature not in features:
                alike = [each for each, about in features.items() if about.is_image == column.is_image]
                raise ConfigError(f"{key}: the data set has no {feature}; it has {', '.join(alike) or 'none'}")
            about = features[feature]
            if about.is_text or about.is_image != column.is_image:
                held = "text" if about.is_text else "images" if about.is_image else "numbers"
                wanted = "images" if column.is_image else "numbers"
                raise ConfigError(f"{key}={feature}: holds {held}; must hold {wanted}")
        if column.is_image and len(column.features) > 1:
            raise ConfigError(f"{key}={list(column.features)}: images cannot be joined; allowed is one feature")
        size = sum(map(self._size, column.features))
        if not column.is_image and size != np.prod(column.shape):
            raise ConfigError(
                f"{key}={' + '.join(column.features)}: has {size} numbers a step; must have "
                f"{int(np.prod(column.shape))}, those of the environment"
            )

    def _joined(self, episode: DatasetEpisode, column: Column, values: Columns) -> np.ndarray:
        parts = [values[feature] for feature in column.features]
        if column.is_image:
            return _resized(parts[0], column.shape)
        joined = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        name = f"warm_start.dataset={self._dataset.path}: {' + '.join(column.features)} of episode {episode.index}"
        if not np.isfinite(joined).all():
            raise ConfigError(f"{name} has NaN or inf")
        with np.errstate(over="ignore", invalid="ignore"):
            cast = joined.astype(column.dtype)
        fits = np.isfinite(cast) if column.dtype.kind == "f" else cast == joined
        if not fits.all():
            raise ConfigError(f"{name} has {joined[~fits][0]}, which the environment's {column.dtype.name} cannot hold")
        return cast.reshape(-1, *column.shape)


def _features(columns: Mapping[str, Column]) -> list[str]:
    return list(dict.fromkeys(feature for column in columns.values() for feature in column.features))


def _resized(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return images in another size; each pixel is a mean over its area, as with ``env.adapter.image_size``."""
    if images.shape[1:] == shape:
        return images
    size = (shape[1], shape[0])
    return np.stack([np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX)) for image in images])
