"""Statistics of the features of a LeRobot data set.

In its files they are arrays by name: ``count``, ``min``, ``max``, ``mean``, ``std``, and quantiles such as ``q01``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodyflow.datasets.dataset import FeatureStatistics

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
Described = dict[str, NDArray[Any]]


def of_values(values: Mapping[str, Any]) -> FeatureStatistics:
    """Return statistics as a data set's files hold them: ``count``, ``mean``, ``std``, ``min``, ``max``, quantiles."""
    mean, std, low, high = (np.atleast_1d(np.asarray(values[k], np.float64)) for k in ("mean", "std", "min", "max"))
    q01, q99 = (np.atleast_1d(np.asarray(values[k], np.float64)) if k in values else None for k in ("q01", "q99"))
    return FeatureStatistics(int(np.ravel(values["count"])[0]), mean, std, low, high, q01, q99)


def read_values(values: Mapping[str, Any]) -> FeatureStatistics:
    """Return statistics as a file holds them, which may be damaged.

    Raises:
        KeyError: One of them is missing.
        ValueError: They are not finite numbers of one shape, are of no step, or contradict each other.
        TypeError: They are not numbers.
    """
    found = of_values(values)
    numbers = [found.mean, found.std, found.low, found.high, *(x for x in (found.q01, found.q99) if x is not None)]
    if found.count < 1 or any(x.shape != found.mean.shape or not np.isfinite(x).all() for x in numbers):
        raise ValueError("must be finite numbers of one shape, over at least one step")
    if (found.std < 0).any():
        raise ValueError("must have no negative std")
    if (found.low > found.high).any():
        raise ValueError("must have no min above max")
    if found.excludes(found.mean).any():
        raise ValueError("must have no mean outside of min and max")
    if found.q01 is not None and found.q99 is not None and (found.q01 > found.q99).any():
        raise ValueError("must have no q01 above q99")
    return found


def merged(parts: Sequence[FeatureStatistics]) -> FeatureStatistics:
    """Return the statistics over all steps from those of disjoint parts.

    The variance is that of a population, from the variances within the parts and the squared distances of their means
    (Chan, Golub and LeVeque, 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances").
    A quantile is the mean of those of the parts, weighted by their steps, as LeRobot computes it.
    """
    counts = np.array([part.count for part in parts], np.float64)
    weights = (counts / counts.sum()).reshape(-1, *[1] * parts[0].mean.ndim)
    means = np.stack([part.mean for part in parts])
    mean = (weights * means).sum(0)
    variance = (weights * (np.stack([part.std for part in parts]) ** 2 + (means - mean) ** 2)).sum(0)
    low, high = np.min([part.low for part in parts], 0), np.max([part.high for part in parts], 0)
    q01, q99 = _mean([part.q01 for part in parts], counts), _mean([part.q99 for part in parts], counts)
    return FeatureStatistics(int(counts.sum()), mean, np.sqrt(variance), low, high, q01, q99)


def _mean(parts: Sequence[NDArray[np.float64] | None], weights: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the weighted mean of the parts; ``None`` if one is missing."""
    found = [part for part in parts if part is not None]
    return np.average(found, axis=0, weights=weights) if len(found) == len(parts) else None


def describe(values: NDArray[Any]) -> Described:
    """Return the statistics of numbers, ``[T, D]``, over their first axis."""
    numbers = values.astype(np.float64)
    quantiles = np.quantile(numbers, list(QUANTILES.values()), axis=0)
    moments = {"min": numbers.min(0), "max": numbers.max(0), "mean": numbers.mean(0), "std": numbers.std(0)}
    return {**moments, "count": np.array([len(numbers)]), **dict(zip(QUANTILES, quantiles, strict=True))}


def describe_images(images: NDArray[np.uint8]) -> Described:
    """Return the statistics of images ``[T, H, W, 3]`` by colour, ``[3, 1, 1]``, of values from 0 to 1."""
    sums, squares = np.zeros(3), np.zeros(3)
    for image in images:  # one at a time, because all images of an episode as float64 take much memory
        numbers = image.reshape(-1, 3) / 255
        sums, squares = sums + numbers.mean(0), squares + np.square(numbers).mean(0)
    mean = sums / len(images)
    std = np.sqrt(np.maximum(squares / len(images) - mean**2, 0))
    low, high = images.min((0, 1, 2)) / 255, images.max((0, 1, 2)) / 255
    moments = {"min": low, "max": high, "mean": mean, "std": std}
    return {**{name: each.reshape(3, 1, 1) for name, each in moments.items()}, "count": np.array([len(images)])}


def merge_described(parts: Sequence[Described]) -> Described:
    """Return the statistics over all steps from those of disjoint parts.

    A quantile is the mean of those of the parts, weighted by their steps, as LeRobot computes it.
    """
    whole, weights = merged([of_values(part) for part in parts]), np.array([float(part["count"][0]) for part in parts])
    quantiles = {
        name: np.average([part[name] for part in parts], axis=0, weights=weights)
        for name in QUANTILES
        if name in parts[0]
    }
    moments = {"min": whole.low, "max": whole.high, "mean": whole.mean, "std": whole.std}
    return {**moments, "count": np.array([whole.count]), **quantiles}
