"""A workflow in which the model plays all players of a game."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from embodyflow.agents.chat.conversation import Conversation
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.games.pettingzoo_game import PettingZooGame
from embodyflow.agents.games.text_game import GameBuilder, TextGame
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt
from embodyflow.references import resolve
from embodyflow.seeding import derive_rng

_PROBE_SEED = 0


class SelfPlay:
    """Implements ``RolloutWorkflow``, ``Demonstrator`` and ``RowChecker`` of :mod:`embodyflow.agents.workflow`.

    Each player is an agent with a conversation of its own, which holds what that player may know. A turn of the model
    is one action. An action that the rules do not allow is the model's mistake: the player loses. Each player's reward
    is its agent's outcome. An episode succeeds if nobody broke the rules. The column ``seed`` of a row seeds the game,
    so siblings begin alike. Demonstrations are games of random actions that the rules allow.

    Args:
        config: Section ``rollout.agent`` with ``game`` or ``pettingzoo``, and ``agents``, the names of the players.

    Raises:
        ConfigError: The game cannot be built, or ``agents`` are not its players.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._build = _builder(config)

    def check(self, row: Prompt) -> None:
        """Check that rows have what a game needs.

        Raises:
            ConfigError: A row has no seed.
        """
        if not isinstance(row.row.get("seed"), int):
            raise ConfigError("data: the workflow SelfPlay needs rows with a number seed; allowed is data=seeds")

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one game, until its end, a broken rule or a limit."""
        game = self._build(row.row["seed"])
        chats: dict[str, Conversation] = {}
        while (player := game.turn) is not None and context.counts.turns < self._config.max_turns:
            if not _tell(game.observe(), player, chats, engine, row, context):
                break
            action = (await chats[player].reply(self._config.max_turn_tokens)).strip()
            if chats[player].finished and action in game.actions:
                game.act(action)
            else:
                context.mistake(f"error: allowed are {', '.join(game.actions)}")
                game.forfeit()
        is_legal = context.counts.mistakes == 0
        return Episode(engine.transcript, game.turn is None, float(is_legal), is_legal, agent_rewards=game.rewards)

    async def demonstrate(self, row: Prompt) -> tuple[str, ...]:
        """Return the actions of a random game that a row seeds, in their order."""
        seed = row.row["seed"]
        game, rng = self._build(seed), derive_rng(seed, "random play")
        actions: list[str] = []
        while game.turn is not None and len(actions) < self._config.max_turns:
            actions.append(game.actions[int(rng.integers(len(game.actions)))])
            game.act(actions[-1])
        return tuple(actions)


def _tell(
    text: str, player: str, chats: dict[str, Conversation], engine: ChatEngine, row: Prompt, context: EpisodeContext
) -> bool:
    """Give a player what it reads next, in its conversation; return False if no turn fits after it."""
    if player in chats:
        return chats[player].give("user", [text])
    assert row.messages is not None
    *earlier, last = row.messages
    asked = replace(row, messages=[*earlier, {**last, "content": f"{last['content']}{text}"}])
    chats[player] = engine.chat(asked, [], context, player)
    return chats[player].room >= 1


def _builder(config: AgentConfig) -> GameBuilder:
    """Return the function that builds the game, checked with two games."""
    key, find = _find(config)
    try:
        build = find()
        game = build(_PROBE_SEED)
        _check_players(key, game.players, config.agents)
        _check_repeats(key, game, build(_PROBE_SEED))
    except ConfigError:
        raise
    except Exception as error:  # a user's game may raise anything; it is reported in one line
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{key}: {type(error).__name__}: {line}") from error
    return build


def _find(config: AgentConfig) -> tuple[str, Callable[[], GameBuilder]]:
    """Return the key that names the game, and a function that returns its builder."""
    if (config.game is None) == (config.pettingzoo is None):
        raise ConfigError(
            "rollout.agent.game: must be set for the workflow SelfPlay, to a class of a game, or "
            "rollout.agent.pettingzoo in its place"
        )
    if (game := config.game) is not None:
        return f"rollout.agent.game={game}", lambda: resolve(game)
    assert config.pettingzoo is not None
    return f"rollout.agent.pettingzoo.env={config.pettingzoo.env}", partial(partial, PettingZooGame, config.pettingzoo)


def _check_players(key: str, players: Sequence[str], agents: Sequence[str]) -> None:
    if tuple(agents) != tuple(players):
        raise ConfigError(f"rollout.agent.agents={list(agents)}: must be the players of {key}, {list(players)}")


def _check_repeats(key: str, one: TextGame, other: TextGame) -> None:
    if (one.turn, one.observe(), one.actions) != (other.turn, other.observe(), other.actions):
        raise ConfigError(f"{key}: two games with seed {_PROBE_SEED} begin differently; a game must depend on its seed")
