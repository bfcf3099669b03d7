"""Games of PettingZoo whose players act one after the other (AEC), by text.

Terry et al. 2021, "PettingZoo: Gym for multi-agent reinforcement learning", arXiv:2009.14471. The package is imported
where a game is built.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from embodyflow.config.agents.pettingzoo_game import PettingZooConfig
from embodyflow.errors import ConfigError
from embodyflow.references import resolve

_KEY = "rollout.agent.pettingzoo"
_MASK = "action_mask"


class PettingZooGame:
    """Implements :class:`~embodyflow.agents.games.text_game.TextGame` with an environment of PettingZoo.

    A player's reward is the sum of all that the environment gives it. An action is one that has a name and that the
    mask in the observation or in the infos allows.

    Args:
        config: Section ``rollout.agent.pettingzoo``.
        seed: Seed of the reset.

    Raises:
        ConfigError: The environment cannot be built, or the configuration does not fit its spaces.
    """

    def __init__(self, config: PettingZooConfig, seed: int) -> None:
        self._config, self._env = config, _build(config)
        self._env.reset(seed=seed)
        self.players: tuple[str, ...] = tuple(self._env.possible_agents)
        for player in self.players:
            _check_actions(config, self._env.action_space(player))
        self._describe = {player: _describer(config, self._env.observation_space(player)) for player in self.players}
        self._rewards = dict.fromkeys(self.players, 0.0)
        self._is_over = False
        self._let_those_who_are_out_go()

    @property
    def turn(self) -> str | None:
        """Name of the player who acts next; ``None`` after the end."""
        return None if self._is_over or not self._env.agents else str(self._env.agent_selection)

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions that the mask allows the player who acts next."""
        names, player = self._config.actions, self._env.agent_selection
        places = (self._env.observe(player), self._env.infos[player])
        mask = next((each[_MASK] for each in places if isinstance(each, Mapping) and _MASK in each), None)
        return names if mask is None else tuple(name for name, allowed in zip(names, mask, strict=False) if allowed)

    @property
    def rewards(self) -> Mapping[str, float]:
        """Sum of the rewards of each player so far."""
        return dict(self._rewards)

    def observe(self) -> str:
        """Return the text that the player who acts next reads.

        Raises:
            TypeError: The function of ``observation`` returns no text.
        """
        player = str(self._env.agent_selection)
        text = self._describe[player](_without_mask(self._env.observe(player)), player)
        if not isinstance(text, str):
            raise TypeError(f"{_KEY}.observation: must give a string, gave {type(text).__name__}")
        return text

    def act(self, action: str) -> None:
        """Play an action of the player who acts next."""
        number = self._config.actions.index(action) + int(self._env.action_space(self._env.agent_selection).start)
        self._step(number)
        self._let_those_who_are_out_go()

    def forfeit(self) -> None:
        """End the game: the player who acts next loses ``penalty``."""
        self._rewards[str(self._env.agent_selection)] -= self._config.penalty
        self._is_over = True

    def _let_those_who_are_out_go(self) -> None:
        """Take the empty steps of players whose game is over, so that the player who acts next is one who may act."""
        env = self._env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            self._step(None)

    def _step(self, action: int | None) -> None:
        self._env.step(action)
        for player, reward in self._env.rewards.items():
            self._rewards[player] += float(reward)


def _build(config: PettingZooConfig) -> Any:
    """Build an environment, a ``pettingzoo.AECEnv``.

    Raises:
        ConfigError: The package is not installed, there is no such function, or it fails.
    """
    key = f"{_KEY}.env={config.env}"
    try:
        found = resolve(config.env)
        make: Callable[..., Any] = getattr(found, "env", found)
        env = make(**config.kwargs)
    except ImportError as error:
        line = str(error).strip().partition("\n")[0].rstrip(".")
        raise ConfigError(f"{key}: {line}; install the environment's package, such as the extra games") from error
    except Exception as error:  # an environment may raise anything; it is reported in one line
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{key}: cannot be built: {type(error).__name__}: {line}") from error
    if not hasattr(env, "agent_selection") and not hasattr(env, "agent_iter"):
        raise ConfigError(
            f"{key}: makes a {type(env).__name__}; allowed are environments whose agents take turns (AEC)"
        )
    return env


def _check_actions(config: PettingZooConfig, space: Any) -> None:
    if not isinstance(space, spaces.Discrete) or len(config.actions) > space.n:
        raise ConfigError(
            f"{_KEY}.actions: has {len(config.actions)} names, and the environment has {space}; allowed are as many "
            "names as a Discrete space has actions, or fewer"
        )


def _describer(config: PettingZooConfig, space: Any) -> Callable[[Any, str], Any]:
    """Return the function of an observation without mask and a player's name that gives its text."""
    key, chosen, space = f"{_KEY}.observation", config.observation, _without_mask(space)
    if isinstance(chosen, str):
        try:
            function: Callable[[Any, str], Any] = resolve(chosen)
        except ImportError as error:
            raise ConfigError(f"{key}={chosen}: {error}") from error
        return function
    if chosen is None:
        if not isinstance(space, spaces.Text):
            raise ConfigError(f"{key}=null: needs a Text space, and the environment has {space}; name a function")
        return lambda value, player: value
    names = chosen
    if not isinstance(space, spaces.Discrete) or len(names) != space.n:
        raise ConfigError(
            f"{key}: has {len(names)} names, and the environment has {space}; name a function, or each number"
        )
    return lambda value, player: names[int(value) - int(space.start)]


def _without_mask(value: Any) -> Any:
    """Return the observation, or its space, inside a dictionary with an action mask."""
    has_mask = isinstance(value, Mapping | spaces.Dict) and _MASK in value.keys()  # noqa: SIM118 (a space iterates so)
    return value["observation"] if has_mask else value
