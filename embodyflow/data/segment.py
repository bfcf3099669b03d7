"""Part of a rollout that is sampled with one version of the policy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Tokens of all rows of a node that one version of the policy samples.

    Attributes:
        index: Number of the segment, from 0.
        is_last: Whether rows are whole after it. Only the last segment passes rows on.
    """

    index: int
    is_last: bool
