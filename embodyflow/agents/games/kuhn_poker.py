"""Kuhn poker, the smallest poker (Kuhn 1950, "A simplified two-person poker").

The deck has a jack, a queen and a king. Both players put one chip into the pot and get a card. The first player checks
or bets another chip. After a bet the other one calls with a chip or folds. After a check the second player has the
first one's choice. The higher card takes the pot. With optimal play the first player loses 1/18 of a chip a game.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Any

from embodyflow.prompts.word_tokenizer import chat_tokenizer
from embodyflow.seeding import derive_seed

CARDS = ("jack", "queen", "king")
"""Cards, the lowest first."""
PLAYERS = ("first", "second")
DEALS = tuple(permutations(CARDS, 2))
"""All deals, equally likely: the card of each player."""
History = tuple[str, ...]
"""Actions so far."""

_AFTER = {"check": ("check", "bet"), "bet": ("call", "fold")}
_FORFEIT = 2.0  # as much as a game can cost
_WORDS = (
    *PLAYERS,
    *CARDS,
    *("check", "bet", "call", "fold"),
    *" .,:'?!abcdefghijklmnopqrstuvwxyz",
)


def allowed(history: History) -> tuple[str, ...]:
    """Return the actions that the rules allow after a history, none after the end."""
    if not history:
        return ("check", "bet")
    is_over = history[-1] in ("call", "fold") or history == ("check", "check")
    return () if is_over else _AFTER[history[-1]]


def payoff(deal: tuple[str, str], history: History) -> float:
    """Return the chips that the first player wins, negative for a loss, after a history that ends the game.

    Raises:
        ValueError: The game is not over.
    """
    if allowed(history):
        raise ValueError(f"history={history}: the game is not over")
    if history[-1] == "fold":
        return 1.0 if len(history) == 2 else -1.0
    stake = 2.0 if history[-1] == "call" else 1.0
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake


class KuhnPoker:
    """Implements :class:`~embodyflow.agents.games.text_game.TextGame`: one deal.

    The first player reads ``first king`` and later ``bet``. The second player reads ``second queen check``.

    Args:
        seed: Seed of the deal.
    """

    players = PLAYERS

    def __init__(self, seed: int) -> None:
        self.deal = DEALS[derive_seed(seed, "kuhn deal") % len(DEALS)]
        self.history: History = ()
        self._first_wins: float | None = None

    @property
    def turn(self) -> str | None:
        """Name of the player who acts next; ``None`` after the end."""
        return None if self._first_wins is not None else PLAYERS[len(self.history) % 2]

    @property
    def actions(self) -> tuple[str, ...]:
        """Actions that the rules allow the player who acts next."""
        return allowed(self.history)

    @property
    def rewards(self) -> Mapping[str, float]:
        """Chips that each player won; 0 before the end."""
        first = self._first_wins or 0.0
        return {"first": first, "second": 0.0 - first}

    def observe(self) -> str:
        """Return the text that the player who acts next reads."""
        return observation(len(self.history) % 2, self.deal[len(self.history) % 2], self.history)

    def act(self, action: str) -> None:
        """Play an action of the player who acts next."""
        if action not in self.actions:
            raise ValueError(f"action={action!r}: the rules allow {', '.join(self.actions) or 'none'}")
        self.history = (*self.history, action)
        if not self.actions:
            self._first_wins = payoff(self.deal, self.history)

    def forfeit(self) -> None:
        """End the game: the player who acts next loses two chips."""
        self._first_wins = -_FORFEIT if self.turn == "first" else _FORFEIT


def observation(seat: int, card: str, history: History) -> str:
    """Return the text that a player reads before its next action.

    Args:
        seat: 0 for the first player, 1 for the second.
        card: Card of the player.
        history: Actions so far. Before its first action the player reads seat, card and the last one of them, later
            only the last one.
    """
    opening = (PLAYERS[seat], card) if len(history) < 2 else ()
    return " ".join((*opening, *history[-1:]))


def build_tokenizer() -> Any:
    """Build a tokenizer of the game, a ``transformers.PreTrainedTokenizerFast`` with a chat template."""
    return chat_tokenizer(_WORDS)
