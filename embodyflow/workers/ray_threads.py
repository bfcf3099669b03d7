"""Synchronous calls of Ray in threads, since they block for up to a minute once the head of the cluster is gone."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(call: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
    """Run a synchronous call in a thread of its own; return the future of its result.

    Neither the end of the event loop nor that of the process waits for the thread, as both do with
    :func:`asyncio.to_thread`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():  # no one waits any longer
            set_outcome(outcome)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = future.set_result, call(*arguments)
        except Exception as error:
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name=f"ray-{getattr(call, '__name__', 'call')}", daemon=True).start()
    return future
