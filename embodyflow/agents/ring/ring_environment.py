"""Environments that agents in a ring step: a class with ``reset`` and ``step(actions, ground_truth)``."""

import copy
import inspect
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from embodyflow.agents.environments.environment_class import row_arguments, task_seed
from embodyflow.agents.environments.seeded_call import perform
from embodyflow.agents.episode import EpisodeContext
from embodyflow.agents.tools.tool import Callee, import_object
from embodyflow.config.agents.agent import CallLimits
from embodyflow.config.agents.ring import RingEnvironmentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt
from embodyflow.seeding import derive_seed

_QUEUE = ":ring"
"""Name of the queue that the calls of all environments wait in; no tool has it."""
_RESET, _FIRST_STEP = -1, -2
"""Numbers of these calls in the journal; further steps count down, and calls of the model count from 0."""


@dataclass(frozen=True)
class Step:
    """What an environment answers to a round.

    Attributes:
        observations: Text for each agent, in the order of the ring.
        reward: Reward of the round.
        stop: Whether the episode ends.
    """

    observations: tuple[str, ...]
    reward: float
    stop: bool


class RingEnvironment:
    """An environment class.

    Args:
        config: Section ``rollout.agent.ring.environment``.

    Raises:
        ConfigError: It cannot be imported, needs arguments, or lacks a method.
    """

    def __init__(self, config: RingEnvironmentConfig) -> None:
        self.key = f"rollout.agent.ring.environment={config.factory}"
        self.build: type[Any] = import_object("rollout.agent.ring.environment", config.factory)
        if not isinstance(self.build, type):
            raise ConfigError(f"{self.key}: must be a class")
        self._require(self.build, "is built without arguments")
        for name in ("reset", "step"):
            if not callable(getattr(self.build, name, None)):
                raise ConfigError(f"{self.key}: has no method {name}")
        self.reset: Callable[..., Any] = partial(self.build.reset, None)
        step = partial(self.build.step, None)
        self._require(step, "is called as step(actions=…, ground_truth=…)", actions=[], ground_truth=None)
        self.limits = CallLimits(
            timeout=config.timeout,
            retries=config.retries,
            backoff=config.backoff,
            concurrency=config.concurrency,
            max_answer_chars=sys.maxsize,
        )

    def _require(self, function: Callable[..., Any], form: str, **arguments: Any) -> None:
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"{self.key}: {form}: {error}") from error


class RingSession:
    """The environment of one episode; its state lasts from the reset to the end of the episode.

    A failed call may leave it half changed. So a further attempt builds a new one, resets it and takes the earlier
    steps again; a replaced rollout worker does so with the steps that the journal recorded.

    Args:
        environment: Class of the environment.
        row: Row of the data.
        context: Context of the episode.
        num_agents: Number of agents, each of which gets a text.
    """

    def __init__(self, environment: RingEnvironment, row: Prompt, context: EpisodeContext, num_agents: int) -> None:
        self._environment, self._row, self._context, self._num_agents = environment, row, context, num_agents
        self._arguments = row_arguments(environment.reset, row, context.split, environment.key)
        self._task = task_seed(row, context.split)
        self._instance: Any = None
        self._made: list[Sequence[str]] = []

    async def begin(self) -> None:
        """Build and reset the instance; a text that ``reset`` returns is not read.

        Raises:
            ToolFailedError: It failed in all attempts.
        """
        make = partial(self._context.runner.perform, self._callee("reset", self._start), {})
        await self._context.answer(_RESET, "reset", {"prompt": self._row.prompt_id}, make, repeat=True)

    async def step(self, actions: Sequence[str]) -> Step:
        """Step the environment with the texts of all agents.

        Raises:
            ToolFailedError: It failed in all attempts.
            TypeError: The environment returned something else than texts, a number and a truth value.
        """
        number = len(self._made)
        callee = self._callee("step", self._stepper(number, actions))
        make = partial(self._context.runner.perform, callee, {}, self._prepare)
        given = {"actions": list(actions)}
        answer = await self._context.answer(_FIRST_STEP - number, "step", given, make, repeat=True)
        self._made.append(actions)
        told = json.loads(answer.text)
        if isinstance(told, str):
            raise TypeError(f"{self._environment.key}: step {told}")
        observations, reward, stop = told
        return Step(tuple(observations), reward, stop)

    async def _start(self) -> str:
        seed = derive_seed(self._task, "reset")
        instance = await self._perform(self._environment.build, {}, seed)
        # The environment may change its arguments, which a later attempt needs.
        await self._perform(instance.reset, copy.deepcopy(self._arguments), seed)
        self._instance = instance
        return ""

    def _stepper(self, number: int, actions: Sequence[str]) -> Callable[[], Awaitable[str]]:
        """Return a function that takes a step and returns its outcome as JSON, or what is wrong with it."""

        async def step() -> str:
            seed = derive_seed(self._context.seed, self._task, number)
            truth = copy.deepcopy(self._row.ground_truth)
            given = await self._perform(self._instance.step, {"actions": list(actions), "ground_truth": truth}, seed)
            return json.dumps(_plain(given, self._num_agents))

        return step

    async def _prepare(self, attempt: int) -> str | None:
        """Restore the instance after a failed attempt; return why that failed, or ``None``."""
        if attempt == 0:
            return None
        steps = [self._callee("step", self._stepper(number, actions)) for number, actions in enumerate(self._made)]
        for callee in [self._callee("reset", self._start), *steps]:
            answer = await self._context.runner.attempt(callee, {})
            if answer.outcome == "failure":
                return answer.text
        return None

    async def _perform(self, function: Callable[..., Any], values: Mapping[str, Any], seed: int) -> Any:
        return await perform(function, values, seed if self._environment.limits.concurrency == 1 else None)

    def _callee(self, name: str, function: Callable[..., Any]) -> Callee:
        return Callee(name, function, self._environment.limits, (), _QUEUE)


def _plain(given: Any, num_agents: int) -> tuple[list[str], float, bool] | str:
    """Return the texts, the reward and the end that ``step`` returned, as JSON has them, or what is wrong with them."""
    if not isinstance(given, tuple | list) or len(given) != 3:
        return f"must return (observations, reward, stop), gave {type(given).__name__}"
    observations, reward, stop = given
    if not isinstance(observations, tuple | list) or not all(isinstance(each, str) for each in observations):
        return f"must return a list of texts as observations, gave {type(observations).__name__}"
    if len(observations) != num_agents:
        return f"must return an observation for each of {num_agents} agents, gave {len(observations)}"
    if not hasattr(reward, "__float__") or not math.isfinite(float(reward)):
        return f"must return a finite number as reward, gave {reward!r}"
    return list(observations), float(reward), bool(stop)
