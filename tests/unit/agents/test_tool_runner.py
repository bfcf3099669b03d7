"""Calls of tools: an answer, the model's mistake, or a failure of the infrastructure after all retries."""

import asyncio
import json
import sys
import threading
import time
from functools import wraps
from itertools import pairwise

import pytest

from embodyflow.agents.tools.tool import ModelMistake, Tool, exceptions
from embodyflow.agents.tools.tool_runner import Answer, ToolRunner
from embodyflow.config.agents.agent import ToolConfig

DEFAULTS = {"function": "none:none", "retries": 2, "backoff": 0.0, "timeout": 5.0}


def run(function, arguments=None, **limits):
    config = ToolConfig(**(DEFAULTS | limits))
    tool = Tool(function, config, exceptions("mistakes", config.mistakes))
    return asyncio.run(ToolRunner().call(tool, arguments or {}))


def failing(times, fault):
    """Return a tool that answers after it has failed some times, and its calls."""
    calls = []

    def fetch() -> str:
        """Fetch."""
        calls.append(None)
        if len(calls) <= times:
            fault()
        return "fetched"

    return fetch, calls


def raising(error):
    def fault():
        raise error

    return fault


FAULTS = {
    "connection": raising(ConnectionResetError("reset")),
    "server": raising(RuntimeError("503")),
    "broken answer": raising(json.JSONDecodeError("no", "", 0)),
    "time-out": lambda: time.sleep(0.5),
    "memory": raising(MemoryError()),
    "exit": sys.exit,
    "value": raising(ValueError("a bug of the tool")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_retried_and_the_answer_is_that_without_it(name):
    fetch, calls = failing(2, FAULTS[name])

    assert run(fetch, timeout=0.1) == Answer("answer", "fetched", retries=2) and len(calls) == 3


@pytest.mark.parametrize("name", FAULTS)
def test_a_tool_that_always_fails_is_no_answer(name):
    fetch, calls = failing(99, FAULTS[name])

    answer = run(fetch, timeout=0.05, retries=1)

    assert (answer.outcome, answer.retries, len(calls)) == ("failure", 1, 2) and answer.text


def test_each_wait_before_a_further_attempt_is_twice_as_long():
    times = []

    def fetch() -> str:
        """Fetch."""
        times.append(time.monotonic())
        raise ConnectionRefusedError("it starts again")

    run(fetch, retries=3, backoff=0.05)

    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) == 3 and all(wait >= 0.05 * 2**number for number, wait in enumerate(waits))
    assert [ToolConfig(**DEFAULTS | {"backoff": 20}).wait_after(attempt) for attempt in (0, 1, 5000)] == [20, 30, 30]


def test_a_time_limit_is_named():
    fetch, _ = failing(99, FAULTS["time-out"])

    assert run(fetch, timeout=0.05, retries=0).text == "no answer within timeout=0.05 seconds"


def test_an_answer_after_the_time_limit_counts_as_none_even_if_the_tool_never_awaits():
    async def busy() -> str:
        """Wait."""
        time.sleep(0.1)
        return "late"

    answer = run(busy, timeout=0.05, retries=0)
    assert answer.outcome == "failure"
    assert answer.text == "no answer within timeout=0.05 seconds; it blocked the event loop, and all episodes"


def test_a_tool_may_handle_the_errors_of_what_it_awaits():
    async def patient() -> str:
        """Wait."""
        waiting = asyncio.current_task().get_loop().create_future()
        asyncio.get_running_loop().call_soon(waiting.set_exception, ValueError("gone"))
        try:
            return await waiting
        except ValueError as error:
            return f"handled: {error}"

    assert run(patient, retries=0) == Answer("answer", "handled: gone")


class Aborted(BaseException):
    """An exception that no handler of ordinary ones catches, as those of some libraries."""


@pytest.mark.parametrize("error", [Aborted("over"), BaseExceptionGroup("all", [Aborted("over")])])
def test_an_exception_beside_the_ordinary_ones_is_a_failure_too(error):
    async def end() -> str:
        """End."""
        raise error

    answer = run(end, retries=0)
    assert answer.outcome == "failure" and answer.text.startswith(f"{type(error).__name__}: ")


def test_a_coroutine_function_behind_a_decorator_is_awaited():
    async def fetch() -> str:
        """Fetch."""
        return "fetched"

    @wraps(fetch)
    def decorated():
        return fetch()

    vars(decorated).pop("__wrapped__")
    assert run(decorated) == Answer("answer", "fetched")


def test_an_answer_without_a_text_is_a_fault():
    def fetch() -> str:
        """Fetch."""
        return object()

    answer = run(fetch, retries=0)
    assert answer.outcome == "failure" and answer.text.startswith("TypeError: a tool returned <object object at 0x")


def test_a_mistake_is_no_fault_and_not_retried():
    fetch, calls = failing(99, raising(ModelMistake("no such page")))

    assert run(fetch) == Answer("mistake", "error: no such page") and len(calls) == 1


def test_a_tool_may_have_mistakes_of_its_own():
    fetch, calls = failing(99, raising(LookupError("no such page")))

    assert run(fetch, mistakes=("builtins:LookupError",)).outcome == "mistake" and len(calls) == 1


def test_wrong_arguments_do_not_reach_the_tool():
    fetch, calls = failing(0, None)

    assert run(fetch, {"page": 1}).outcome == "mistake" and not calls


def test_a_coroutine_that_is_cancelled_by_itself_is_a_fault():
    async def fetch() -> str:
        """Fetch."""
        raise asyncio.CancelledError

    assert run(fetch, retries=0) == Answer("failure", "it was cancelled", 0)


def test_a_cancelled_call_stays_cancelled():
    async def fetch() -> str:
        """Fetch."""
        await asyncio.sleep(60)
        return ""

    async def cancel():
        tool = Tool(fetch, ToolConfig(**DEFAULTS))
        call = asyncio.create_task(ToolRunner().call(tool, {}))
        await asyncio.sleep(0.01)
        call.cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_no_more_calls_at_a_time_than_allowed_and_waiting_is_not_timed():
    running, most = [], []

    def fetch() -> str:
        """Fetch."""
        running.append(None)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return "fetched"

    async def many():
        limits = DEFAULTS | {"concurrency": 2, "timeout": 0.5, "retries": 0}
        tool, runner = Tool(fetch, ToolConfig(**limits)), ToolRunner()
        return await asyncio.gather(*(runner.call(tool, {}) for _ in range(24)))  # the last one waits 0.55 seconds

    answers = asyncio.run(many())

    assert {answer.outcome for answer in answers} == {"answer"} and max(most) == 2


def test_nothing_waits_for_a_hung_tool():
    release = threading.Event()
    fetch, _ = failing(99, release.wait)

    started = time.perf_counter()
    answer = run(fetch, timeout=0.05, retries=0)
    release.set()

    assert answer.outcome == "failure" and time.perf_counter() - started < 30
