"""The interface of games whose players read and write text, one at a time."""

from collections.abc import Callable, Mapping
from typing import Protocol


class TextGame(Protocol):
    """A game in progress. It is built as ``Game(seed)`` and depends on its seed and the actions alone.

    Attributes:
        players: Names of the players, always in the same order.
    """

    players: tuple[str, ...]

    @property
    def turn(self) -> str | None:
        """Name of the player who acts next; ``None`` after the end."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Actions that the rules allow the player who acts next, at least one."""

    @property
    def rewards(self) -> Mapping[str, float]:
        """Rewards of all players; 0 before the end."""

    def observe(self) -> str:
        """Return the text that the player who acts next reads: all that it may know and has not read so far."""

    def act(self, action: str) -> None:
        """Play an action of the player who acts next, one of :attr:`actions`."""

    def forfeit(self) -> None:
        """End the game against the player who acts next, who broke the rules."""


GameBuilder = Callable[[int], TextGame]
"""Class of a game, as ``rollout.agent.game`` names it; the argument is the seed."""
