"""Text of a Gymnasium environment's observations and actions."""

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import spaces

from embodyflow.config.agents.gymnasium_text import GymnasiumConfig
from embodyflow.errors import ConfigError
from embodyflow.references import resolve


class TextSpaces:
    """Turns observations into text, and text into actions.

    Args:
        config: Section ``rollout.agent.gymnasium``.
        observation_space: Observations of the environment.
        action_space: Actions of the environment.

    Raises:
        ConfigError: The configuration does not fit the spaces.
    """

    def __init__(self, config: GymnasiumConfig, observation_space: Any, action_space: Any) -> None:
        self._describe = _describer(config.observation, observation_space)
        self._actions = _numbers(config.actions, action_space)
        self._space = action_space
        self.names: tuple[str, ...] = config.actions or ()

    def observation(self, value: Any, num_steps: int) -> str:
        """Return the text of an observation.

        Args:
            value: Observation.
            num_steps: Steps before it; 0 at the reset.

        Raises:
            TypeError: The function of ``observation`` returns no text.
        """
        text = self._describe(value, num_steps)
        if not isinstance(text, str):
            raise TypeError(f"rollout.agent.gymnasium.observation: must give a string, gave {type(text).__name__}")
        return text

    def action(self, text: str) -> Any:
        """Return the action that a text names, or ``None`` if it names none."""
        if self._actions is not None:
            return self._actions.get(text.strip().casefold())
        return text if self._space.contains(text) else None

    def text_of(self, action: Any) -> str:
        """Return the text that names an action.

        Raises:
            ValueError: The action has no name.
        """
        if self._actions is None:
            return str(action)
        for name, number in zip(self.names, self._actions.values(), strict=True):
            if number == action:
                return name
        raise ValueError(f"action {action} has no name; names are {', '.join(self.names)}")


def _describer(chosen: str | Sequence[str] | None, space: Any) -> Callable[[Any, int], Any]:
    key = "rollout.agent.gymnasium.observation"
    if isinstance(chosen, str):
        try:
            function: Callable[[Any, int], Any] = resolve(chosen)
        except ImportError as error:
            raise ConfigError(f"{key}={chosen}: {error}") from error
        if not callable(function):
            raise ConfigError(f"{key}={chosen}: is a {type(function).__name__}; allowed is a function")
        return function
    if chosen is None:
        if not isinstance(space, spaces.Text):
            raise ConfigError(
                f"{key}=null: needs a Text space, and the environment has {_short(space)}; allowed here are a function "
                "module:function and, for a Discrete space, a list of names"
            )
        return lambda value, num_steps: value
    if not isinstance(space, spaces.Discrete) or len(chosen) != space.n:
        raise ConfigError(
            f"{key}: has {len(chosen)} names, and the environment has {_short(space)}; allowed are as many "
            "names as a Discrete space has numbers"
        )
    names, start = list(chosen), int(space.start)
    return lambda value, num_steps: names[int(value) - start]


def _numbers(names: Sequence[str] | None, space: Any) -> dict[str, int] | None:
    """Return the action of each name, without case and space around it; ``None`` for a space of texts."""
    key = "rollout.agent.gymnasium.actions"
    if names is None:
        if not isinstance(space, spaces.Text):
            raise ConfigError(
                f"{key}=null: needs a Text space, and the environment has {_short(space)}; allowed here are names of a "
                "Discrete space's actions"
            )
        return None
    if not isinstance(space, spaces.Discrete) or len(names) > space.n:
        raise ConfigError(
            f"{key}: has {len(names)} names, and the environment has {_short(space)}; allowed are as many names "
            "as a Discrete space has actions, or fewer"
        )
    return {name.strip().casefold(): int(space.start) + number for number, name in enumerate(names)}


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
