"""How a rank plays its share of an evaluation beside training: part by part, with a file for the rows of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from embodyflow.data.plans.partition import Share
from embodyflow.data.rows_file import Journal
from embodyflow.nodes.context import NodeContext

EpisodeT = TypeVar("EpisodeT")


@dataclass(frozen=True)
class Part(Generic[EpisodeT]):
    """Episodes that are played together.

    Attributes:
        episodes: Episodes of the part.
        journal: File that keeps their rows as they are made; ``None`` keeps none.
    """

    episodes: Sequence[EpisodeT]
    journal: Journal | None


def shares_of(config: Mapping[str, Any], rank: int, num_ranks: int) -> list[Share]:
    """Return the shares of an evaluation that a rank plays, in order: its own, or ``config["shares"]`` of them."""
    if (count := config.get("shares")) is None:
        return [Share(rank, num_ranks)]
    return [Share(index, count) for index in range(count)]


def parts_of(
    episodes: Sequence[EpisodeT], share: Share, config: Mapping[str, Any], call: NodeContext, *, is_divisible: bool
) -> list[Part[EpisodeT]]:
    """Return the parts of a share, each with at most ``config["rows_per_part"]`` episodes.

    Args:
        episodes: Episodes of the share.
        share: The share.
        config: Configuration of the node.
        call: Call of the node, whose folder keeps the rows.
        is_divisible: Whether a row does not depend on the rows beside it. Otherwise the share is a single part that
            keeps no rows.
    """
    if not is_divisible or not config.keys() & {"shares", "rows_per_part"}:
        return [Part(episodes, None)]
    size = config.get("rows_per_part") or max(len(episodes), 1)
    starts = range(0, max(len(episodes), 1), size)
    return [
        Part(episodes[start : start + size], call.journal(share.index, number)) for number, start in enumerate(starts)
    ]


def part_to_play(parts: Sequence[Part[EpisodeT]], index: int) -> Part[EpisodeT] | None:
    """Return the part with an index if its rows are kept, so that a later call finds them; ``None`` otherwise."""
    return parts[index] if index < len(parts) and parts[index].journal is not None else None
