"""Games of PettingZoo by text: masks, rewards, broken rules, and what is refused."""

import asyncio
from typing import Any

import pytest
from agent_jobs import agent_config
from pydantic import ValidationError

from embodyflow.agents.games.pettingzoo_game import PettingZooGame
from embodyflow.agents.games.self_play import SelfPlay
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.config.agents.pettingzoo_game import PettingZooConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt

pytest.importorskip("pettingzoo", reason="needs the extra games")

NAMES = ("one", "two", "three")
PILE = {"env": "pettingzoo_games:env", "observation": "pettingzoo_games:describe", "actions": NAMES}
BY_PILE = {4: 11, 5: 1}  # a seed of each pile


def pile(stones: int, **values: Any) -> PettingZooGame:
    game = PettingZooGame(PettingZooConfig(**{**PILE, **values}), BY_PILE[stones])
    assert game.players == ("ann", "bob") and f"{stones} left" in game.observe()
    return game


@pytest.mark.parametrize("where", ["observation", "infos"])
def test_a_game_is_played_by_names_and_masks(where: str) -> None:
    game = pile(5, kwargs={"where": where})
    assert (game.turn, game.observe(), game.actions) == ("ann", "ann: 5 left", NAMES)
    game.act("three")
    assert (game.turn, game.observe(), game.actions) == ("bob", "bob: 2 left", ("one", "two"))
    assert game.rewards == {"ann": 0.0, "bob": 0.0}
    game.act("two")
    assert game.turn is None and game.rewards == {"ann": -1.0, "bob": 1.0}


def test_without_a_mask_all_names_are_allowed_and_numbers_may_have_names() -> None:
    places = ("nothing", *(f"{number} stones" for number in range(1, 8)))
    game = PettingZooGame(PettingZooConfig(**{**PILE, "kwargs": {"where": "nowhere"}, "observation": places}), 0)
    assert game.observe() == "7 stones"
    game.act("three")
    game.act("two")
    assert game.observe() == "2 stones" and game.actions == NAMES


def test_who_breaks_the_rules_loses_the_penalty() -> None:
    game = pile(4, penalty=0.5)
    game.act("one")
    game.forfeit()
    assert game.turn is None and game.rewards == {"ann": 0.0, "bob": -0.5}


def test_an_action_outside_the_mask_has_no_name() -> None:
    game = pile(4, actions=("one", "two"))
    assert game.actions == ("one", "two")
    with pytest.raises(ValueError, match="not in tuple"):
        game.act("three")


def section(**values: Any) -> AgentConfig:
    config: AgentConfig = agent_config("experiment=kuhn").rollout.agent
    chosen = PettingZooConfig(**{**PILE, **values})
    return config.model_copy(update={"game": None, "pettingzoo": chosen, "agents": ("ann", "bob"), "max_turns": 9})


def test_the_workflow_plays_it() -> None:
    row = Prompt(0, None, [{"role": "user", "content": ""}], "", "seeds", {"seed": BY_PILE[5]})
    actions = asyncio.run(SelfPlay(section()).demonstrate(row))
    assert sum(NAMES.index(action) + 1 for action in actions) == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"env": "pettingzoo_games:chess"},
            "pettingzoo_games:chess: 'pettingzoo_games' has no attribute 'chess'; inst",
        ),
        ({"kwargs": {"size": 3}}, "cannot be built: TypeError: .*unexpected keyword argument 'size'"),
        (
            {"env": "builtins:dict"},
            r"rollout.agent.pettingzoo.env=builtins:dict: makes a dict; allowed are environments",
        ),
        ({"actions": ("a", "b", "c", "d")}, "actions: has 4 names, and the environment has Discrete"),
        ({"observation": None}, "observation=null: needs a Text space, and the environment has Discrete"),
        ({"observation": ("few", "many")}, "observation: has 2 names, and the environment has Discrete"),
        (
            {"observation": "pettingzoo_games:missing"},
            "observation=pettingzoo_games:missing: 'pettingzoo_games' has no",
        ),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SelfPlay(section(**values))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo_games", None)
    with pytest.raises(ConfigError, match="install the environment's package, such as the extra games"):
        SelfPlay(section())


@pytest.mark.parametrize("names", [(), ("one", "one"), ("one ", "two")])
def test_names_differ(names: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="actions"):
        PettingZooConfig(**{**PILE, "actions": names})


def test_a_game_and_a_pettingzoo_game_exclude_each_other() -> None:
    both = section().model_copy(update={"game": "embodyflow.agents.games.kuhn_poker:KuhnPoker"})
    with pytest.raises(ConfigError, match=r"^rollout.agent.game: must be set for the workflow SelfPlay, to a class"):
        SelfPlay(both)


def test_tic_tac_toe_of_pettingzoo() -> None:
    pytest.importorskip("pygame", reason="needs the extra games")
    squares = tuple("abcdefghi")
    config = PettingZooConfig(
        env="pettingzoo.classic:tictactoe_v3",
        observation="embodyflow.agents.games.board_text:board",
        actions=squares,
    )
    game = PettingZooGame(config, 0)
    assert game.observe() == "... ... ..." and game.actions == squares
    for square in "aebcg":
        game.act(square)
    assert game.turn == "player_2" and game.observe() == "oox .x. o.."
    assert game.actions == ("d", "f", "h", "i") and not any(game.rewards.values())
    game.act("f")
    game.act("d")  # the squares a, d and g are a line
    assert game.turn is None and game.rewards == {"player_1": 1.0, "player_2": -1.0}
