"""One episode's environment: an instance that is replaced by one with the same state where it is lost."""

import asyncio
import copy
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from embodyflow.agents.environments.environment_class import QUEUE, EnvironmentClass, task_seed
from embodyflow.agents.environments.seeded_call import perform
from embodyflow.agents.episode import EpisodeContext
from embodyflow.agents.tools.tool import Callee, ModelTool
from embodyflow.agents.tools.tool_runner import Answer
from embodyflow.prompts.prompts import Prompt
from embodyflow.seeding import derive_seed

_RESET, _REWARD = -1, -2
"""Numbers of these calls in the journal; calls of the model count from 0."""


class EnvironmentSession:
    """An instance of an environment for one episode.

    A failed call may leave the instance half changed. So a retry builds a new one, resets it and makes the earlier
    calls again; a replaced rollout worker does so with the calls that the journal recorded. With ``replay=record``
    neither makes a call again that has ended: a retry goes on with the instance that it has.

    Args:
        environment: Class of the environment.
        row: Row of the data.
        context: Context of the episode.
    """

    def __init__(self, environment: EnvironmentClass, row: Prompt, context: EpisodeContext) -> None:
        self._environment, self._row, self._context = environment, row, context
        self._instance: Any = None
        self._arguments = environment.reset_arguments(row, context.split)
        self._made: list[tuple[str, Mapping[str, Any]]] = []
        self._order = asyncio.Lock()  # a turn's calls change the same instance, so they run in order
        self.tools: dict[str, ModelTool] = {
            name: tool.bound_to(self._method(name)) for name, tool in environment.tools.items()
        }

    async def begin(self) -> str | None:
        """Build and reset the instance; return the text that ``reset`` returned.

        Raises:
            ToolFailedError: It failed in all attempts.
        """
        step = self._step("reset", self._start, self._environment.config.retries)
        make = partial(self._context.runner.perform, step, {})
        answer = await self._context.answer(_RESET, "reset", {"prompt": self._row.prompt_id}, make, repeat=True)
        text: str | None = json.loads(answer.text)
        return text

    async def call(self, tool: ModelTool, arguments: Mapping[str, Any]) -> str:
        """Call a tool, a method of the instance or another; as :meth:`EpisodeContext.call`."""
        if tool is not self.tools.get(tool.name):
            return await self._context.call(tool, arguments)
        make = None
        if self._environment.config.replay == "act":
            make = partial(self._context.runner.call, tool, arguments, self._prepare)
        async with self._order:
            return await self._context.call(tool, arguments, make)

    async def reward(self) -> float | None:
        """Return the environment's reward; ``None`` if it gives none.

        Raises:
            RuntimeError: ``get_reward`` raised, exceeded its time limit or returned no finite number.
        """
        if not self._environment.gives_reward:
            return None
        answer = await self._context.answer(_REWARD, "get_reward", {}, self._ask_reward)
        return float(answer.text)

    async def _ask_reward(self) -> Answer:
        answer = await self._context.runner.attempt(self._step("get_reward", self._score), {})
        if answer.outcome == "failure":
            raise RuntimeError(f"{self._environment.reference}: get_reward: {answer.text}")
        return answer

    async def _score(self) -> str:
        value = await self._perform(self._instance, "get_reward", {}, "reward")
        if not isinstance(value, int | float) and not hasattr(value, "__float__"):
            raise TypeError(f"must return a number, gave {type(value).__name__}")
        if not math.isfinite(float(value)):
            raise ValueError(f"must return a finite number, gave {value}")
        return repr(float(value))

    async def _start(self) -> str:
        """Replace the instance by a new one; return the text of ``reset`` as JSON."""
        self._instance = None
        seed = task_seed(self._row, self._context.split)
        instance = await self._call(self._environment.build, {}, seed)
        # The environment may change its arguments, which a later attempt needs.
        text = await self._perform(instance, "reset", copy.deepcopy(self._arguments), None)
        if not isinstance(text, str | None):
            raise TypeError(f"reset must return text or None, gave {type(text).__name__}")
        self._instance = instance
        return json.dumps(text)

    def _method(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls a method of the instance as a tool."""
        mistakes = self._environment.tools[name].mistakes

        async def act(**values: Any) -> Any:
            try:
                answer = await self._perform(self._instance, name, values, len(self._made))
            except mistakes:
                self._made.append((name, values))  # it may have changed the instance, too
                raise
            self._made.append((name, values))
            return answer

        return act

    async def _prepare(self, attempt: int) -> str | None:
        """Restore the instance after a failed attempt; return why that failed, or ``None``."""
        if attempt == 0:
            return None
        made, self._made = self._made, []
        steps = [(self._step("reset", self._start), {}), *((self.tools[name], values) for name, values in made)]
        for callee, values in steps:
            answer = await self._context.runner.attempt(callee, values)
            if answer.outcome == "failure":
                self._made = made
                return answer.text
        return None

    async def _perform(self, instance: Any, name: str, values: Mapping[str, Any], number: int | str | None) -> Any:
        """Call a method; its number in the episode, or ``None`` for the task, is part of its seed."""
        method, task = getattr(instance, name), task_seed(self._row, self._context.split)
        seed = derive_seed(task, "reset") if number is None else derive_seed(self._context.seed, task, number)
        return await self._call(method, values, seed)

    async def _call(self, function: Any, values: Mapping[str, Any], seed: int) -> Any:
        return await perform(function, values, seed if self._environment.is_seeded else None)

    def _step(self, name: str, function: Any, retries: int = 0) -> Callee:
        limits = self._environment.config.model_copy(update={"retries": retries, "max_answer_chars": sys.maxsize})
        return Callee(name, function, limits, (), QUEUE)
