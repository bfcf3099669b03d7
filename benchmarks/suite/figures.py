"""Samples of one case by round, ours beside a peer's, with their ratio and its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_ROUNDS = 3


@dataclass(frozen=True)
class Figures:
    """Samples of one case of a benchmark; sample ``i`` of both contenders comes from round ``i``.

    Attributes:
        case: Name of the case, unique in its benchmark.
        peer: Name of the peer.
        unit: Unit of the samples.
        ours: Our samples.
        theirs: The peer's samples.
        lower_is_better: True for times, False for rates.
    """

    case: str
    peer: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    lower_is_better: bool

    def __post_init__(self) -> None:
        """Check the samples.

        Raises:
            ValueError: There are too few rounds, the numbers of rounds differ, or a sample is not positive.
        """
        if len(self.ours) != len(self.theirs):
            raise ValueError(f"{self.case}: {len(self.ours)} rounds of ours, {len(self.theirs)} of the peer")
        if len(self.ours) < MIN_ROUNDS:
            raise ValueError(f"{self.case}: {len(self.ours)} rounds, at least {MIN_ROUNDS} are needed for a spread")
        if not all(sample > 0 for sample in (*self.ours, *self.theirs)):
            raise ValueError(f"{self.case}: a sample is not positive")

    def ratios(self) -> list[float]:
        """Return how many times as fast as the peer ours is, by round."""
        if self.lower_is_better:
            return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range of at least two values, divided by their median."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
