"""Configuration of PettingZoo games that agents play by text."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from embodyflow.config.base import Config

Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name``."""
Name = Annotated[str, Field(min_length=1)]


class PettingZooConfig(Config):
    """A game of PettingZoo, in which agents act one after the other (AEC).

    Attributes:
        env: Function that makes the environment, such as ``pettingzoo.classic.tictactoe_v3:env``, or a module that has
            it, ``pettingzoo.classic:tictactoe_v3``.
        kwargs: Keyword arguments of the function.
        observation: Text of observations. A function ``module:function``, called with the observation, without its
            action mask, and the name of the player, returns it; a list names the numbers of a ``Discrete`` space;
            ``null`` is for a ``Text`` space.
        actions: Names of the first actions of a ``Discrete`` space, which the model writes; it cannot take those
            without a name. An action that the environment's mask forbids breaks the rules.
        penalty: Reward that a player loses for breaking the rules, which ends the game; the others lose nothing.
    """

    env: Reference
    kwargs: dict[str, Any] = Field(default_factory=dict)
    observation: Reference | tuple[Name, ...] | None = None
    actions: Annotated[tuple[Name, ...], Field(min_length=1)]
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    @field_validator("actions")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len({*names}) < len(names) or any(name != name.strip() for name in names):
            raise ValueError(f"must be different names without space around them; has {list(names)}")
        return names
