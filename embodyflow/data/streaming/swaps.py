"""The moments at which the rows of a group went on with newer weights: recorded, and repeated from the record.

The seed of its draws, which is unique in a run, names a response, a turn of an agent or an episode of a robot.
``Swap.version`` samples the tokens from ``Swap.token`` on, up to the next swap. The version that the group begins with
samples those before. For an episode, a token is a decision.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

Weights: TypeAlias = Mapping[str, NDArray[Any]]
LoadWeights: TypeAlias = Callable[[], Weights]
"""A function that returns the weights of a version."""


class Swap(NamedTuple):
    """A change of weights in a response, turn or episode.

    Attributes:
        seed: Seed of its draws.
        token: Index of the first token, or decision, that the version samples.
        version: Version of the policy.
    """

    seed: int
    token: int
    version: int


def swaps_of(facts: Sequence[Sequence[int]]) -> tuple[Swap, ...]:
    """Return the swaps in facts of a ledger."""
    return tuple(Swap(*each) for each in facts)


class SwapLog(Protocol):
    """The versions of the weights that sample each turn or episode, by its seed."""

    def recorded(self, seed: int, token: int) -> int | None:
        """Return the recorded version of a token, or ``None`` if any may sample it."""

    def add(self, seed: int, token: int, version: int) -> None:
        """Record that a version samples the tokens from this one on, before it samples the first of them."""
