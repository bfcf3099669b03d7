"""Calls of tools: time limits, retries, and the three outcomes of a call."""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from embodyflow.agents.tools.tool import Callee, ModelMistake, ModelTool, shorten, text_of
from embodyflow.process.tracing import span

log = logging.getLogger(__name__)

Outcome = Literal["answer", "mistake", "failure"]


@dataclass(frozen=True)
class Answer:
    """Outcome of one tool call.

    Attributes:
        outcome: ``answer``, the model's ``mistake``, or a ``failure`` of the infrastructure after all retries.
        text: Text that the model reads, or the reason of a failure.
        retries: Number of attempts that failed before.
    """

    outcome: Outcome
    text: str
    retries: int = 0


Prepare = Callable[[int], Awaitable[str | None]]
"""Gets ready for an attempt of a call, by its number; returns ``None``, or why the attempt must fail."""


class ToolRunner:
    """Calls tools for the episodes of one event loop."""

    def __init__(self) -> None:
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def call(self, tool: ModelTool, arguments: Mapping[str, Any], prepare: Prepare | None = None) -> Answer:
        """Call a tool until it answers, refuses the arguments, or has failed ``retries + 1`` times.

        A function that is no coroutine and exceeds its time limit goes on in its thread; its answer is dropped.

        Args:
            tool: Tool to call.
            arguments: Arguments as the model wrote them.
            prepare: Gets ready for each attempt.
        """
        try:
            values = tool.validate(arguments)
        except ModelMistake as error:
            return Answer("mistake", shorten(f"error: {error}", tool.config))
        return await self.perform(tool, values, prepare)

    async def perform(self, callee: Callee, values: Mapping[str, Any], prepare: Prepare | None = None) -> Answer:
        """Call a function until it answers, raises one of its mistakes, or has failed ``retries + 1`` times."""
        reason = ""
        for attempt in range(callee.config.retries + 1):
            answer = await self.attempt(callee, values, attempt, prepare)
            if answer.outcome != "failure":
                return answer
            reason = answer.text
            log.warning("tool %s failed in attempt %d: %s", callee.name, attempt + 1, reason)
            if attempt < callee.config.retries:
                await asyncio.sleep(callee.config.wait_after(attempt))
        return Answer("failure", reason, callee.config.retries)

    async def attempt(
        self, callee: Callee, values: Mapping[str, Any], number: int = 0, prepare: Prepare | None = None
    ) -> Answer:
        """Call a function once.

        Args:
            callee: Function to call.
            values: Its arguments.
            number: Number of attempts before.
            prepare: Gets ready for the attempt.
        """
        if prepare is not None and (reason := await prepare(number)) is not None:
            return Answer("failure", reason, number)
        slots = self._slots.setdefault(callee.queue, asyncio.Semaphore(callee.config.concurrency))
        async with slots:
            with span(callee.name, "environment", track="tools", attempt=number):
                return await _attempt(callee, values, number)

    async def run_alone(self, queue: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Run a function in a thread and return its value; functions of the same queue wait for each other.

        Raises:
            Exception: The function's own.
        """
        async with self._slots.setdefault(queue, asyncio.Semaphore(1)):
            return await in_thread(function, values)


async def _attempt(tool: Callee, values: Mapping[str, Any], attempt: int) -> Answer:
    limit = asyncio.timeout(tool.config.timeout)
    try:
        async with limit:
            if inspect.iscoroutinefunction(tool.function):
                watched = _Watched(tool.function(**values))
                value = await watched
                if watched.longest > tool.config.timeout:  # the limit acts where a coroutine awaits
                    return Answer("failure", f"{_late(tool)}; it blocked the event loop, and all episodes", attempt)
            else:
                value = await in_thread(tool.function, values)
                if inspect.isawaitable(value):  # a decorator may hide that the function is a coroutine function
                    value = await value
        return Answer("answer", shorten(text_of(value), tool.config), attempt)
    except tool.mistakes as error:
        return Answer("mistake", shorten(f"error: {error}", tool.config), attempt)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Answer("failure", "it was cancelled", attempt)  # by itself, such as by a library with scopes
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # such as SystemExit and those of libraries; it must not end other episodes
        if limit.expired():
            return Answer("failure", _late(tool), attempt)
        return Answer("failure", f"{type(error).__name__}: {error}", attempt)


class _Watched:
    """A coroutine whose time between two awaits is measured, in which no other episode goes on.

    Args:
        coroutine: Coroutine to await.

    Attributes:
        longest: Longest time, in seconds.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._steps, self.longest = coroutine.__await__(), 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        go_on, given = self._steps.send, None
        while True:
            begin = time.monotonic()
            try:
                awaited = go_on(given)
            except StopIteration as end:
                return end.value
            finally:
                self.longest = max(self.longest, time.monotonic() - begin)
            try:
                go_on, given = self._steps.send, (yield awaited)
            except BaseException as error:  # such as a cancellation, which the coroutine may handle
                go_on, given = self._steps.throw, error


def _late(callee: Callee) -> str:
    return f"no answer within timeout={callee.config.timeout:g} seconds"


async def in_thread(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Run a function in a thread of its own and return its value.

    Nothing waits for a thread that hangs; a pool would do so at its end.

    Raises:
        Exception: The function's own.
        RuntimeError: The function raised an exception that ends a process, such as ``SystemExit``.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = function(**values)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed, because the rollout ended
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error if isinstance(error, Exception) else RuntimeError(repr(error))
    return value
