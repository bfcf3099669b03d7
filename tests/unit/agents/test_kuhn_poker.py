"""Kuhn poker: its rules, and how much a perfect opponent wins."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.agents.games.kuhn_poker import DEALS, KuhnPoker, allowed, build_tokenizer, payoff
from embodyflow.agents.games.kuhn_reading import read_strategy
from embodyflow.agents.games.kuhn_strategy import (
    GAME_VALUE,
    INFORMATION_SETS,
    average,
    exploitability,
    optimal,
    uniform,
    value,
)

chances = st.floats(0, 1).map(lambda p: round(p, 6))
strategies = st.lists(chances, min_size=12, max_size=12).map(
    lambda active: {
        each: dict(zip(allowed(each[1]), (1 - p, p), strict=True))
        for each, p in zip(INFORMATION_SETS, active, strict=True)
    }
)


@pytest.mark.parametrize(
    ("history", "king_first", "jack_first"),
    [
        (("check", "check"), 1, -1),
        (("bet", "call"), 2, -2),
        (("bet", "fold"), 1, 1),
        (("check", "bet", "call"), 2, -2),
        (("check", "bet", "fold"), -1, -1),
    ],
)
def test_who_wins_what(history: tuple[str, ...], king_first: float, jack_first: float) -> None:
    assert payoff(("king", "queen"), history) == king_first
    assert payoff(("jack", "queen"), history) == jack_first
    assert all(history[number] in allowed(history[:number]) for number in range(len(history)))
    with pytest.raises(ValueError, match="the game is not over"):
        payoff(("king", "queen"), history[:-1])


def test_a_game_is_played_by_turns_and_seeds_deal_every_card_as_often() -> None:
    deals = Counter(KuhnPoker(seed).deal for seed in range(3000))
    assert deals.keys() == {*DEALS} and all(430 < count < 570 for count in deals.values())
    seed = next(seed for seed in range(100) if KuhnPoker(seed).deal == ("king", "jack"))
    game, read = KuhnPoker(seed), []
    for action in ("check", "bet", "call"):
        read.append((game.turn, game.observe()))
        assert not any(game.rewards.values())
        game.act(action)
    assert read == [("first", "first king"), ("second", "second jack check"), ("first", "bet")]
    assert game.turn is None and game.rewards == {"first": 2.0, "second": -2.0}
    with pytest.raises(ValueError, match="the rules allow none"):
        game.act("call")


def test_who_breaks_the_rules_loses_two_chips() -> None:
    game = KuhnPoker(3)
    game.forfeit()
    assert game.turn is None and game.rewards == {"first": -2.0, "second": 2.0}
    game = KuhnPoker(3)
    game.act("bet")
    with pytest.raises(ValueError, match="action='check': the rules allow call, fold"):
        game.act("check")
    game.forfeit()
    assert game.turn is None and game.rewards == {"first": 2.0, "second": -2.0}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_optimal_strategies_cannot_be_exploited(alpha: float) -> None:
    assert value(optimal(alpha), optimal(0.1)) == pytest.approx(GAME_VALUE)
    assert exploitability(optimal(alpha)) == pytest.approx(0)


def test_known_exploitabilities() -> None:
    assert len(INFORMATION_SETS) == 12
    assert exploitability(uniform()) == pytest.approx(11 / 24)  # 0.458, half of NashConv 0.917, as OpenSpiel has it
    assert value(uniform(), uniform()) == pytest.approx(1 / 8)
    folds = {each: {action: float(action in ("check", "fold")) for action in allowed(each[1])} for each in uniform()}
    assert exploitability(folds) == pytest.approx(1)  # a bet takes every pot, in both seats
    shy = {**optimal(), ("queen", ("bet",)): {"call": 0.0, "fold": 1.0}}
    assert exploitability(shy) == pytest.approx(1 / 12)  # a jack, one deal in three, bets and wins half a chip more


@settings(max_examples=20)
@given(strategies, strategies)
def test_nobody_wins_more_than_the_perfect_opponent(mine: dict, other: dict) -> None:
    won = (value(other, mine) - value(mine, other)) / 2
    assert won <= exploitability(mine) + 1e-9
    assert exploitability(mine) >= -1e-9


@settings(max_examples=20)
@given(st.lists(strategies, min_size=1, max_size=3), strategies)
def test_an_average_plays_like_one_of_its_strategies_drawn_before_the_game(drawn: list, other: dict) -> None:
    mean = average(drawn)
    assert value(mean, other) == pytest.approx(sum(value(each, other) for each in drawn) / len(drawn))
    assert value(other, mean) == pytest.approx(sum(value(other, each) for each in drawn) / len(drawn))


def test_a_models_strategy_is_read_from_what_it_reads_in_the_game() -> None:
    tokenizer, asked = build_tokenizer(), []

    def score(pairs: list) -> list:
        asked.extend((tokenizer.decode(prompt), tokenizer.decode(response)) for prompt, response in pairs)
        return [np.log([0.75 if "bet" in tokenizer.decode(answer) else 0.2, 0.5]) for _, answer in pairs]

    reading = read_strategy(score, tokenizer, "play: ")
    assert len(asked) == 24
    assert ("<bos><user>play: second queen bet<end><assistant>", "fold<end>") in asked
    thread = "<bos><user>play: first jack<end><assistant>check<end><user>bet<end><assistant>"
    assert (thread, "call<end>") in asked
    assert reading.strategy["king", ()] == pytest.approx({"check": 0.2 / 0.95, "bet": 0.75 / 0.95})
    assert reading.strategy["king", ("bet",)] == pytest.approx({"call": 0.5, "fold": 0.5})
    assert reading.legal == pytest.approx(0.2)
