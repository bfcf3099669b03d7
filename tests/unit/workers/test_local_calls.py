import asyncio
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embodyflow.workers.local_calls import LocalCaller, serve


async def double(value: int) -> int:
    return 2 * value


async def fail(name: str) -> None:
    raise KeyError(name)


async def collect_garbage(seconds: float) -> None:
    """Collect it after the caller has left, since a connection refers to its server."""
    asyncio.get_running_loop().call_later(seconds, gc.collect)


def answer(connection: Any, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    gc.freeze()  # inherited objects would wait for threads of the parent when they are collected

    async def main() -> None:
        server = await serve({"double": double, "fail": fail, "collect_garbage": collect_garbage})
        connection.send(server.address)
        await asyncio.sleep(600)

    new_loop().run_until_complete(main())


@pytest.fixture(params=["asyncio", "uvloop"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Any, bytes]]:
    """A listening process and its address, with each of the event loops that Ray's actors may have."""
    loop = pytest.importorskip(request.param, reason="Ray takes uvloop only where it is installed")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(theirs, loop.new_event_loop))
    process.start()
    yield process, ours.recv()
    process.kill()
    process.join()


def test_calls_are_answered_one_after_the_other_for_several_callers(server: tuple[Any, bytes]) -> None:
    callers = [LocalCaller(server[1]) for _ in range(3)]
    assert [caller.call("double", value) for value in (1, 10**6) for caller in callers] == [2] * 3 + [2 * 10**6] * 3
    assert callers[0].call("double", "x" * 100_000) == "x" * 200_000


def test_a_server_outlives_a_collection_of_garbage(server: tuple[Any, bytes]) -> None:
    """Workers that are started again connect to a buffer whose callers have all died."""
    LocalCaller(server[1]).call("collect_garbage", 0.1)
    time.sleep(0.3)
    assert LocalCaller(server[1]).call("double", 3) == 6


def test_an_error_is_raised_in_the_caller_which_may_continue(server: tuple[Any, bytes]) -> None:
    caller = LocalCaller(server[1])
    with pytest.raises(KeyError, match="1/node/0"):
        caller.call("fail", "1/node/0")
    assert caller.call("double", 2) == 4


def test_a_dead_listener_is_an_error_and_not_a_wait(server: tuple[Any, bytes]) -> None:
    caller = LocalCaller(server[1])
    assert caller.call("double", 1) == 2
    server[0].kill()
    server[0].join()
    with pytest.raises(ConnectionError):
        caller.call("double", 1)
    with pytest.raises(ConnectionError):
        LocalCaller(server[1])


def test_a_listener_of_another_user_is_not_believed(server: tuple[Any, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # the listener has the real one
    with pytest.raises(ConnectionError, match=f"a process of the user {os.geteuid()} listens at the address"):
        LocalCaller(server[1])
