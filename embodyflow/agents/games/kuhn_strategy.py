"""Strategies of Kuhn poker: how much a perfect opponent wins against them, exactly.

A strategy covers both seats. A player's information set is its card and the actions so far, 12 in all.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from embodyflow.agents.games.kuhn_poker import CARDS, DEALS, History, allowed, payoff

InformationSet = tuple[str, History]
"""Card of the player who acts next, and the actions so far; the seat follows from their number."""
Strategy = Mapping[InformationSet, Mapping[str, float]]
"""Probability of each allowed action in each information set."""

_HISTORIES: tuple[History, ...] = ((), ("check",), ("bet",), ("check", "bet"))
INFORMATION_SETS: tuple[InformationSet, ...] = tuple((card, history) for history in _HISTORIES for card in CARDS)
"""All information sets; those with an even number of actions are the first player's."""

GAME_VALUE = -1 / 18
"""Chips that the first player wins per game if both play optimally."""


def uniform() -> Strategy:
    """Return the strategy that draws each action uniformly; its exploitability is 11/24."""
    return {each: dict.fromkeys(allowed(each[1]), 1 / len(allowed(each[1]))) for each in INFORMATION_SETS}


def optimal(alpha: float = 0.0) -> Strategy:
    """Return an optimal strategy.

    Args:
        alpha: Probability that the first player bets with a jack, from 0 to 1/3; each value is optimal.
    """
    of_cards: dict[History, tuple[float, float, float]] = {
        (): (alpha, 0.0, 3 * alpha),
        ("check",): (1 / 3, 0.0, 1.0),
        ("bet",): (0.0, 1 / 3, 1.0),
        ("check", "bet"): (0.0, alpha + 1 / 3, 1.0),
    }
    active = {(card, history): p for history, each in of_cards.items() for card, p in zip(CARDS, each, strict=True)}
    return {
        (card, history): {action: p if action in ("bet", "call") else 1 - p for action in allowed(history)}
        for (card, history), p in active.items()
    }


def value(first: Strategy, second: Strategy) -> float:
    """Return the chips that the first player wins per game, averaged over deals and actions."""
    return sum(_value(deal, (), (first, second)) for deal in DEALS) / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """Return how many chips per game a perfect opponent wins, averaged over the two seats.

    This is half of NashConv: (max_σ u₁(σ, s) + max_σ u₂(s, σ)) / 2. It is 0 for optimal strategies alone.
    """
    as_first = max(value(each, strategy) for each in _pure(seat=0))
    as_second = max(-value(strategy, each) for each in _pure(seat=1))
    return (as_first + as_second) / 2


def average(strategies: Sequence[Strategy]) -> Strategy:
    """Return the strategy that plays like one of the given ones, drawn before each game.

    In each information set a strategy counts as much as its own earlier actions lead there.

    Args:
        strategies: Strategies, at least one.
    """
    mean: dict[InformationSet, dict[str, float]] = {}
    for card, history in INFORMATION_SETS:
        reach = [_own_reach(each, card, history) for each in strategies]
        weights = reach if sum(reach) > 0 else [1.0] * len(strategies)
        mean[card, history] = {
            action: sum(w * each[card, history][action] for w, each in zip(weights, strategies, strict=True))
            / sum(weights)
            for action in allowed(history)
        }
    return mean


def _value(deal: tuple[str, str], history: History, strategies: tuple[Strategy, Strategy]) -> float:
    actions, seat = allowed(history), len(history) % 2
    if not actions:
        return payoff(deal, history)
    chances = strategies[seat][deal[seat], history]
    return sum(
        chances[action] * _value(deal, (*history, action), strategies) for action in actions if chances[action] > 0
    )


def _pure(seat: int) -> Iterator[Strategy]:
    """Yield all strategies of a seat that draw nothing, 2 to the power of 6."""
    mine = [each for each in INFORMATION_SETS if len(each[1]) % 2 == seat]
    for chosen in product(*(allowed(history) for _, history in mine)):
        yield {
            each: {action: float(action == choice) for action in allowed(each[1])}
            for each, choice in zip(mine, chosen, strict=True)
        }


def _own_reach(strategy: Strategy, card: str, history: History) -> float:
    """Return the probability of the player's own earlier actions in a history."""
    reach = 1.0
    for number in range(len(history) - 2, -1, -2):
        reach *= strategy[card, history[:number]][history[number]]
    return reach
