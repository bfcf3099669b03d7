"""An agent of a ring: the functions that make its prompt and hand its turn on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodyflow.agents.chat.transcript import Tokens
from embodyflow.agents.tools.tool import import_object
from embodyflow.config.agents.ring import RingMemberConfig
from embodyflow.errors import ConfigError


class Member:
    """An agent of a ring.

    Args:
        name: Name of the agent.
        config: Section ``rollout.agent.ring.members.<name>``.

    Raises:
        ConfigError: A function cannot be imported or called.
    """

    def __init__(self, name: str, config: RingMemberConfig) -> None:
        self.name, self.observes = name, config.observes
        self._config = config
        self._before = self._function("pre_process", config.pre_process)
        self._after = self._function("post_process", config.post_process)

    def open(self, tokenizer: Any, tokens: Tokens, observation: str | None) -> Tokens:
        """Return the tokens that the agent reads before its turn.

        Args:
            tokenizer: Tokenizer of the model.
            tokens: Tokens of the ring so far.
            observation: Text of the environment for this agent, or ``None``.

        Raises:
            TypeError: ``pre_process`` returned anything but token ids, or none.
            ValueError: There is no ``pre_process``, and the ring has no tokens, since the environment's text is empty.
        """
        if self._before is None and not tokens:
            raise ValueError(f"agent {self.name} has nothing to read: the environment's text is empty")
        if self._before is None:
            return tokens
        seen = observation if self.observes else None
        given = self._before(tokenizer, list(tokens), seen, **self._config.pre_process_kwargs)
        return _token_ids(given, self._config.pre_process)

    def close(self, tokenizer: Any, tokens: Tokens, written: Tokens) -> Tokens:
        """Return the tokens of the ring after the agent's turn.

        Args:
            tokenizer: Tokenizer of the model.
            tokens: Tokens of the ring before the turn.
            written: Tokens of the turn, without the one that ended it.

        Raises:
            TypeError: ``post_process`` returned anything but token ids, or none.
        """
        if self._after is None:
            return tokens + written
        given = self._after(tokenizer, list(tokens), list(written), **self._config.post_process_kwargs)
        return _token_ids(given, self._config.post_process)

    def _function(self, name: str, reference: str | None) -> Callable[..., Any] | None:
        if reference is None:
            return None
        key = f"rollout.agent.ring.members.{self.name}.{name}"
        function: Callable[..., Any] = import_object(key, reference)
        if not callable(function):
            raise ConfigError(f"{key}={reference}: must be a function")
        return function


def _token_ids(given: Any, reference: str | None) -> Tokens:
    """Return token ids, also those of a mapping with ``input_ids``, as chat templates give them."""
    ids = given["input_ids"] if isinstance(given, Mapping) and "input_ids" in given else given
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(each, int) for each in ids):
        raise TypeError(f"{reference} must return a list of token ids, gave {type(given).__name__}")
    if not ids:
        raise TypeError(f"{reference} must return at least one token")
    return tuple(ids)
