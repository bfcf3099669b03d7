"""A watch on a Ray cluster, which ends what waits for it once the last node or the head is gone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import ray

from embodyflow.errors import ClusterLostError
from embodyflow.workers.ray_threads import in_thread

CHECK_SECONDS = 2.0
"""Interval between two checks, and time for the head to accept a connection. Ray notices a dead node after 15 s."""

NUM_CHECKS = 3
"""Checks in a row that miss the head before it counts as gone. It may be restarting, or this process may be stalled."""


def has_live_node() -> bool:
    """Return True if a node of the Ray cluster is alive. The call blocks while the head is gone."""
    return any(node["Alive"] for node in ray.nodes())


@asynccontextmanager
async def while_cluster_lives(what_to_do: Callable[[], str]) -> AsyncIterator[None]:
    """Cancel the block once the Ray cluster of this process has no live node, or its head is gone.

    Ray itself waits for new nodes. It waits 60 s for its head, then aborts the process without a word to the user.

    Args:
        what_to_do: Function that returns the end of the error's message.

    Raises:
        ClusterLostError: The cluster is lost. The error of the block is its cause.
    """
    try:
        async with asyncio.timeout(None) as limit:

            def end_block(watch: "asyncio.Task[str]") -> None:
                if not watch.cancelled():
                    limit.reschedule(0.0)

            watching = asyncio.create_task(_until_lost(ray.get_runtime_context().gcs_address))
            watching.add_done_callback(end_block)
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.wait([watching])
    except Exception as error:
        if not limit.expired():
            raise
        raise ClusterLostError(f"{watching.result()}; {what_to_do()}") from error


async def _until_lost(head: str) -> str:
    """Wait until the cluster is lost; return what is lost.

    Args:
        head: Address of the head, ``<host>:<port>``.
    """
    counting = in_thread(has_live_node)
    try:
        while await _is_head_up(head):
            await asyncio.sleep(CHECK_SECONDS)
            if counting.done():
                if not counting.result():
                    return "no node of the Ray cluster is alive"
                counting = in_thread(has_live_node)
    except asyncio.CancelledError:
        # A call that came after ``ray.shutdown`` would start a new cluster.
        await asyncio.wait([counting], timeout=CHECK_SECONDS)
        raise
    return f"the head of the Ray cluster at {head} is gone"


async def _is_head_up(head: str) -> bool:
    """Return True if the head accepts a connection in one of several attempts.

    The kernel accepts it for a head that is too busy to answer.
    """
    host, _, port = head.rpartition(":")
    for attempt in range(NUM_CHECKS):
        if attempt:
            await asyncio.sleep(CHECK_SECONDS)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:  # also a timeout
            continue
        writer.close()
        return True
    return False
