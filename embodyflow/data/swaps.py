"""The moments at which the responses of a group went on with newer weights: recorded, and repeated from the record.

The seed of its draws, which is unique in a run, names a response or a turn of an agent. ``Swap.version`` samples the
tokens from ``Swap.token`` on, up to the next swap. The version that the group begins with samples those before.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Swap(NamedTuple):
    """A change of weights in a response or turn.

    Attributes:
        seed: Seed of its draws.
        token: Index of the first token that the version samples.
        version: Version of the policy.
    """

    seed: int
    token: int
    version: int


def swaps_of(facts: Sequence[Sequence[int]]) -> tuple[Swap, ...]:
    """Return the swaps in facts of a ledger."""
    return tuple(Swap(*each) for each in facts)
