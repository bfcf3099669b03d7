"""Calls with seeded global random generators, for classes that draw from ``random`` or ``numpy.random``."""

import inspect
import random
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from embodyflow.agents.tools.tool_runner import in_thread

_newest: object = None
"""The newest call. One that exceeded its time limit may still run, and must not reset the generators of a later one."""


def call_seeded(function: Callable[..., Any], values: Mapping[str, Any], seed: int) -> Any:
    """Call a function with seeded global generators, and restore their states after it.

    Only one such call may run at a time.

    Args:
        function: Function to call.
        values: Its keyword arguments.
        seed: Seed in ``[0, 2**63)``.
    """
    with _states(_states_of(seed)):
        return function(**values)


async def perform(function: Callable[..., Any], values: Mapping[str, Any], seed: int | None) -> Any:
    """Call a function in a thread, or await a coroutine function, with seeded global generators.

    Args:
        function: Function to call.
        values: Its keyword arguments.
        seed: Seed in ``[0, 2**63)``; ``None`` leaves the generators alone. Only one seeded call may run at a time.
    """
    if inspect.iscoroutinefunction(function):
        call = function(**values)
        return await (call if seed is None else SeededCoroutine(call, seed))
    if seed is None:
        return await in_thread(function, values)
    return await in_thread(call_seeded, {"function": function, "values": values, "seed": seed})


class SeededCoroutine:
    """An awaitable that runs a coroutine with seeded global generators.

    The generators have the coroutine's states whenever it runs, and their own whenever it waits. So its draws depend
    on the seed alone, and those of other tasks in the event loop do not depend on it. Tasks and threads that the
    coroutine starts are not seeded.

    Args:
        coroutine: Coroutine to run.
        seed: Seed in ``[0, 2**63)``.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], seed: int) -> None:
        self._coroutine, self._drawn = coroutine, _states_of(seed)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the coroutine and return its result."""
        resume: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                waits_for = self._run(resume)
            except StopIteration as end:
                return end.value
            try:
                resume = partial(self._coroutine.send, (yield waits_for))
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                resume = partial(self._coroutine.throw, error)

    def _run(self, resume: Callable[[], Any]) -> Any:
        """Run the coroutine until it waits or ends; return what it waits for."""
        with _states(self._drawn):
            try:
                return resume()
            finally:
                self._drawn = _current()


_States = tuple[Any, Any]
"""States of ``random`` and ``numpy.random``."""


def _states_of(seed: int) -> _States:
    return random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()


def _current() -> _States:
    return random.getstate(), np.random.get_state()


def _set(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextmanager
def _states(states: _States) -> Iterator[None]:
    """Set the generators' states, and restore those of before at the end."""
    global _newest
    _newest = mine = object()
    before = _current()
    _set(states)
    try:
        yield
    finally:
        if _newest is mine:
            _set(before)
