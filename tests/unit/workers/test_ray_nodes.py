"""The watch on a cluster's nodes and its head, with a socket in the place of the head."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from embodyflow.errors import ClusterLostError
from embodyflow.workers import ray_nodes
from embodyflow.workers.ray_nodes import while_cluster_lives

CHECK_SECONDS, HEAD_TIMEOUT = 0.05, 0.15


class Head:
    """The head of a cluster with one live node. While it is away a count of the nodes blocks, as in Ray."""

    def __init__(self) -> None:
        self.is_node_alive, self.num_counts, self.draining = True, 0, frozenset[str]()
        self._back = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = self._listener.getsockname()
        self._back.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._address[1]}"

    def nodes(self) -> list[dict[str, bool]]:
        self._back.wait()
        self.num_counts += 1
        return [{"Alive": False}, {"Alive": self.is_node_alive}]

    def leave(self) -> None:
        self._back.clear()
        self._listener.close()

    def come_back(self) -> None:
        self._listener = socket.create_server(self._address)
        self._back.set()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.close()
        self._back.set()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    head = Head()
    monkeypatch.setattr(ray, "nodes", head.nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=head.address))
    monkeypatch.setattr(ray_nodes, "draining_nodes", lambda: head.draining)
    monkeypatch.setattr(ray_nodes, "CHECK_SECONDS", CHECK_SECONDS)
    yield head
    head.close()


async def wait_while_it_lives(then: Callable[[], Any], head_timeout: float = HEAD_TIMEOUT) -> str:
    """Let a few checks pass, change something, and wait for as long as the cluster lives, or for 20 more checks."""
    async with while_cluster_lives(lambda: "start Ray", head_timeout):
        await asyncio.sleep(3 * CHECK_SECONDS)
        then()
        await asyncio.sleep(20 * CHECK_SECONDS)
    return "survived"


def test_the_block_ends_with_the_last_node(head: Head) -> None:
    with pytest.raises(ClusterLostError, match=r"^no node of the Ray cluster is alive; start Ray$"):
        asyncio.run(wait_while_it_lives(lambda: setattr(head, "is_node_alive", False)))
    assert head.num_counts > 1


def test_the_block_ends_with_the_head_although_the_count_of_nodes_blocks(head: Head) -> None:
    with pytest.raises(ClusterLostError) as caught:
        asyncio.run(wait_while_it_lives(head.leave))
    assert str(caught.value) == f"the head of the Ray cluster at {head.address} is gone; start Ray"


def test_a_head_that_comes_back_in_time_ends_nothing(head: Head) -> None:
    def restart() -> None:
        head.leave()
        threading.Timer(CHECK_SECONDS, head.come_back).start()

    assert asyncio.run(wait_while_it_lives(restart)) == "survived"


def test_the_time_for_a_head_to_come_back_is_the_users(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    def restart() -> None:
        head.leave()
        threading.Timer(10 * CHECK_SECONDS, head.come_back).start()

    assert asyncio.run(wait_while_it_lives(restart, head_timeout=60.0)) == "survived"
    gone, back = (record.getMessage() for record in caplog.records)
    assert gone == f"the head of the Ray cluster at {head.address} is gone; the run waits for 60 s"
    assert back.startswith(f"the head of the Ray cluster at {head.address} is back after ")


def test_the_watch_sees_nodes_that_are_drained(head: Head) -> None:
    async def see() -> list[frozenset[str]]:
        async with while_cluster_lives(lambda: "start Ray", HEAD_TIMEOUT) as watch:
            before = watch.draining
            head.draining = frozenset({"a node"})
            await asyncio.sleep(10 * CHECK_SECONDS)
            return [before, watch.draining]

    assert asyncio.run(see()) == [frozenset(), {"a node"}]


def test_a_lost_cluster_explains_the_errors_that_its_end_causes(head: Head) -> None:
    """Prefect may turn the cancellation of a task run into an error of its own."""

    async def fail() -> None:
        async with while_cluster_lives(lambda: "start Ray", HEAD_TIMEOUT):
            head.leave()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ValueError("a consequence") from None

    with pytest.raises(ClusterLostError, match=r"is gone; start Ray$") as caught:
        asyncio.run(fail())
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [ValueError("a bug"), TimeoutError("a user's own")])
def test_other_errors_of_the_block_are_raised_as_they_are(head: Head, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        asyncio.run(wait_while_it_lives(fail))


def test_a_cancelled_block_stays_cancelled(head: Head) -> None:
    async def cancel() -> None:
        work = asyncio.create_task(wait_while_it_lives(lambda: work.cancel()))
        await work

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_an_error_of_the_watch_ends_the_block(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("Ray changed its answer")

    with pytest.raises(ValueError, match="Ray changed its answer"):
        asyncio.run(wait_while_it_lives(lambda: monkeypatch.setattr(ray, "nodes", fail)))


def test_nothing_waits_for_a_blocked_call(head: Head) -> None:
    """Neither the block's end, beyond one check, nor the event loop's; ``asyncio.to_thread`` would wait for good."""

    async def leave() -> None:
        async with while_cluster_lives(lambda: "start Ray", HEAD_TIMEOUT):
            head._back.clear()
            await asyncio.sleep(3 * CHECK_SECONDS)

    began = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began < 5.0 and not head._back.is_set()
