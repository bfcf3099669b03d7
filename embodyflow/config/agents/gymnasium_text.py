"""Configuration of Gymnasium environments that an agent plays by text."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from embodyflow.config.base import Config
from embodyflow.durations import Seconds

Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name`` to a function."""
Name = Annotated[str, Field(min_length=1)]


class GymnasiumConfig(Config):
    """A Gymnasium environment whose observations and actions are text, or become text here.

    Attributes:
        id: Registered id of the environment, or ``module:id``, such as ``minigrid:MiniGrid-GoToDoor-5x5-v0``.
        kwargs: Keyword arguments of the environment.
        observation: Text of observations. A function ``module:function``, called with the observation and the number of
            steps so far, returns it; a list names the numbers of a ``Discrete`` space; ``null`` is for a ``Text``
            space.
        actions: Names of the first actions of a ``Discrete`` space, which the model writes; it cannot take those
            without a name. ``null`` is for a ``Text`` space.
        success: Condition of success: ``reward`` if the rewards of an episode add up to more than 0, ``terminated`` if
            the environment ended it without truncating it.
        expert: Function ``module:function`` that demonstrates. It gets the environment after its reset and yields an
            action, as the space has it, before each step; a warm start needs it.
        step_timeout: Seconds that the environment has for a reset or a step.
        retries: Further attempts after a failure, each in a new environment that takes the earlier actions again.
    """

    id: Annotated[str, Field(min_length=1)]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    observation: Reference | tuple[Name, ...] | None = None
    actions: tuple[Name, ...] | None = None
    success: Literal["reward", "terminated"] = "reward"
    expert: Reference | None = None
    step_timeout: Seconds = 30.0
    retries: Annotated[int, Field(ge=0, strict=True)] = 2

    @field_validator("actions")
    @classmethod
    def _check_names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and (not names or len({name.strip().casefold() for name in names}) < len(names)):
            raise ValueError(f"must be different names, apart from case and space, and at least one; has {list(names)}")
        return names
