"""A watch on a Ray cluster, which ends what waits for it once the last node or the head is gone."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import ray
from ray._private import state

from embodyflow.errors import ClusterLostError
from embodyflow.workers.ray_threads import in_thread

CHECK_SECONDS = 2.0
"""Interval between two checks, and time for the head to accept a connection. Ray notices a dead node after 15 s."""

NUM_CHECKS = 3
"""Checks in a row that at least miss the head before it counts as gone: this process may have been stalled."""

_logger = logging.getLogger(__name__)


@dataclass
class ClusterWatch:
    """What the watch saw of a Ray cluster in its last check.

    Attributes:
        draining: Ids of the live nodes that are being drained: Ray starts nothing on them any more.
    """

    draining: frozenset[str] = frozenset()


def has_live_node() -> bool:
    """Return True if a node of the Ray cluster is alive. The call blocks while the head is gone."""
    return any(node["Alive"] for node in ray.nodes())


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that are being drained. The call blocks while the head is gone."""
    return frozenset(state.state.get_draining_nodes())


@asynccontextmanager
async def while_cluster_lives(what_to_do: Callable[[], str], head_timeout: float) -> AsyncIterator[ClusterWatch]:
    """Cancel the block once the Ray cluster of this process has no live node, or its head is gone; yield the watch.

    Ray itself waits for new nodes. It waits 60 s for its head, then aborts the process without a word to the user.

    Args:
        what_to_do: Function that returns the end of the error's message.
        head_timeout: Seconds that the head may be gone.

    Raises:
        ClusterLostError: The cluster is lost. The error of the block is its cause.
    """
    try:
        watch = ClusterWatch()
        async with asyncio.timeout(None) as limit:

            def end_block(done: "asyncio.Task[str]") -> None:
                if not done.cancelled():
                    limit.reschedule(0.0)

            watching = asyncio.create_task(_until_lost(ray.get_runtime_context().gcs_address, head_timeout, watch))
            watching.add_done_callback(end_block)
            try:
                yield watch
            finally:
                watching.cancel()
                await asyncio.wait([watching])
    except Exception as error:
        if not limit.expired():
            raise
        raise ClusterLostError(f"{watching.result()}; {what_to_do()}") from error


async def _until_lost(head: str, head_timeout: float, watch: ClusterWatch) -> str:
    """Wait until the cluster is lost; return what is lost.

    Args:
        head: Address of the head, ``<host>:<port>``.
        head_timeout: Seconds that it may be gone.
        watch: Receives what each check sees.
    """
    looking = None
    try:
        while await _is_head_up(head, head_timeout):
            looking = looking or in_thread(_look)
            await asyncio.wait([looking], timeout=CHECK_SECONDS)
            if looking.done():
                is_alive, watch.draining = looking.result()
                if not is_alive:
                    return "no node of the Ray cluster is alive"
                looking = None
                await asyncio.sleep(CHECK_SECONDS)
    except asyncio.CancelledError:
        # A call that came after ``ray.shutdown`` would start a new cluster.
        if looking is not None:
            await asyncio.wait([looking], timeout=CHECK_SECONDS)
        raise
    return f"the head of the Ray cluster at {head} is gone"


def _look() -> tuple[bool, frozenset[str]]:
    return has_live_node(), draining_nodes()


async def _is_head_up(head: str, seconds: float) -> bool:
    """Return True if the head accepts a connection, also after some attempts within so many seconds.

    The kernel accepts it for a head that is too busy to answer.
    """
    began, num_missed = time.monotonic(), 0
    while not await _accepts(head):
        num_missed += 1
        if num_missed >= NUM_CHECKS and time.monotonic() - began >= seconds:
            return False
        if num_missed == NUM_CHECKS:
            _logger.warning("the head of the Ray cluster at %s is gone; the run waits for %g s", head, seconds)
        await asyncio.sleep(CHECK_SECONDS)
    if num_missed >= NUM_CHECKS:
        _logger.warning("the head of the Ray cluster at %s is back after %.0f s", head, time.monotonic() - began)
    return True


async def _accepts(head: str) -> bool:
    host, _, port = head.rpartition(":")
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:  # also a timeout
        return False
    writer.close()
    return True
