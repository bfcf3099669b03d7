"""The names of groups in a stream, and the groups that an iteration trains on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from embodyflow.data.streaming.swaps import Swap, swaps_of


class Ticket(NamedTuple):
    """A group to play. Its rows depend on nothing but this name, the run's seed and what its tools answer.

    Attributes:
        group: Index of the group in the run, from 0. It names the group's prompt and draws.
        attempt: Number of times that the group was dropped and drawn again.
        version: Version of the policy that acts in it.
    """

    group: int
    attempt: int
    version: int

    @property
    def name(self) -> str:
        """Name of the group's file and of its rows in a buffer."""
        return f"{self.group}.{self.attempt}.{self.version}"


@dataclass(frozen=True)
class Selection:
    """The groups that an iteration trains on.

    Attributes:
        iteration: Index of the iteration, from 1.
        groups: The groups, in ascending order.
        dropped: Groups that were dropped since the selection before, because they were too old.
        swaps: Changes of weights within the responses of each group that has any.
    """

    iteration: int
    groups: tuple[Ticket, ...]
    dropped: tuple[Ticket, ...] = ()
    swaps: Mapping[Ticket, tuple[Swap, ...]] = field(default_factory=dict)

    @property
    def staleness(self) -> list[int]:
        """Return how many versions each group lags behind the one that is trained."""
        return [self.iteration - 1 - ticket.version for ticket in self.groups]

    def facts(self) -> dict[str, Any]:
        """Return the ledger's facts of the selection."""
        facts: dict[str, Any] = {name: [list(each) for each in getattr(self, name)] for name in ("groups", "dropped")}
        if self.swaps:
            facts["swaps"] = {ticket.name: [list(each) for each in swaps] for ticket, swaps in self.swaps.items()}
        return facts

    @classmethod
    def of_facts(cls, iteration: int, facts: Mapping[str, Any]) -> "Selection":
        """Return the selection that the ledger names."""
        groups, dropped = (tuple(Ticket(*each) for each in facts[name]) for name in ("groups", "dropped"))
        swaps = facts.get("swaps", {})
        return cls(
            iteration, groups, dropped, {each: swaps_of(swaps[each.name]) for each in groups if each.name in swaps}
        )
