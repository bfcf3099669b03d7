"""The environment of a job."""

from typing import Any

from pydantic import Field

from embodyflow.config.base import Config, PositiveInt


class EnvConfig(Config):
    """The environment, reached by its Gymnasium id.

    Attributes:
        id: Gymnasium id, with ``module:`` in front when a module must be imported to register it.
        tasks: one environment per instruction; the policy is conditioned on the instruction. Empty for a control task
            of Gymnasium's, which has one environment and no instruction.
        kwargs: passed on to ``gymnasium.make``.
        max_steps: environment steps after which an episode is truncated.
    """

    id: str
    tasks: tuple[str, ...]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    max_steps: PositiveInt
