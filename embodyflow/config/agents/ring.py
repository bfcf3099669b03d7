"""Configuration of agents in a ring, as siiRL's multi-agent workflows have them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from embodyflow.config.base import Config, PositiveInt
from embodyflow.durations import Seconds

Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name`` to a function or class."""


class RingMemberConfig(Config):
    """An agent of a ring.

    Attributes:
        pre_process: Function ``module:function`` that makes the tokens that the agent reads, called as
            ``pre_process(tokenizer, prompt_id, obs, **kwargs)`` with the tokens of the ring so far; ``null`` means
            those tokens themselves.
        pre_process_kwargs: Its further arguments.
        post_process: Function ``module:function`` that makes the tokens of the ring after the agent's turn, called as
            ``post_process(tokenizer, prompt_id, response_id, **kwargs)``; ``null`` appends the turn.
        post_process_kwargs: Its further arguments.
        observes: Whether ``pre_process`` gets the environment's text for the agent as ``obs``; otherwise, and before
            the first step, ``obs`` is ``None``.
    """

    pre_process: Reference | None = None
    pre_process_kwargs: dict[str, Any] = Field(default={})
    post_process: Reference | None = None
    post_process_kwargs: dict[str, Any] = Field(default={})
    observes: bool = False

    @model_validator(mode="after")
    def _check_arguments(self) -> "RingMemberConfig":
        for name in ("pre_process", "post_process"):
            if getattr(self, name) is None and getattr(self, f"{name}_kwargs"):
                raise ValueError(f"{name}_kwargs: only used with {name}, and {name} is null")
        if self.observes and self.pre_process is None:
            raise ValueError("observes=true: only used with pre_process, and pre_process is null")
        return self


class RingEnvironmentConfig(Config):
    """The environment that a ring steps at the end of each round. A bare reference stands for the default limits.

    Attributes:
        factory: Class ``module:Class`` that is built without arguments for each episode.
        timeout: Seconds that an attempt has for a reset or a step.
        retries: Further attempts after a failure, each in a new environment that takes the earlier steps again.
        backoff: Seconds before the second attempt; each further one waits twice as long, at most 30 seconds.
        concurrency: Most calls at a time in a rollout worker. With 1, ``random`` and ``numpy.random`` are seeded during
            each call, so a class that draws from them repeats.
    """

    factory: Reference
    timeout: Seconds = 30.0
    retries: Annotated[int, Field(ge=0, strict=True)] = 2
    backoff: Annotated[float, Field(ge=0)] = 0.5
    concurrency: PositiveInt = 1


def _from_factory(value: Any) -> Any:
    return {"factory": value} if isinstance(value, str) else value


class RingConfig(Config):
    """Agents that write one after the other, round after round (:class:`embodyflow.agents.ring.ring.Ring`).

    ``rollout.agent.max_turns`` bounds the rounds.

    Attributes:
        members: Agents by name, in the order in which they write; each has the keys of :class:`RingMemberConfig`:
            ``pre_process``, ``pre_process_kwargs``, ``post_process``, ``post_process_kwargs`` and ``observes``.
        environment: Environment that gets the texts of all agents after each round; ``null`` plays all rounds and lets
            the reward function judge the last turn.
        share_reward: Whether every agent gets the reward of a round; otherwise only the last one does.
        trained_turns: Turns that are trained on: ``all``, or the ``last`` one of each agent.
    """

    members: Annotated[dict[str, RingMemberConfig], Field(min_length=1)]
    environment: Annotated[RingEnvironmentConfig, BeforeValidator(_from_factory)] | None = None
    share_reward: bool = True
    trained_turns: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _check_observers(self) -> "RingConfig":
        observers = [name for name, member in self.members.items() if member.observes]
        if observers and self.environment is None:
            raise ValueError(f"members.{observers[0]}.observes=true: needs an environment, and environment is null")
        return self
