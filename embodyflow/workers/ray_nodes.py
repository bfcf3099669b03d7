"""Waits for Ray that end with the last node of its cluster."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import ray

from embodyflow.errors import ClusterLostError

CHECK_SECONDS = 2.0
"""Interval at which the nodes are counted. Ray itself notices a dead node after about 15 s."""

T = TypeVar("T")


def has_live_node() -> bool:
    """Return True if a node of the Ray cluster is alive."""
    return any(node["Alive"] for node in ray.nodes())


async def while_a_node_lives(answers: Awaitable[T]) -> T:
    """Wait for answers of Ray as long as its cluster has a live node; otherwise Ray would wait for a new one.

    Raises:
        ClusterLostError: No node is alive.
        Exception: The wait itself raised it.
    """
    waiting = asyncio.ensure_future(answers)
    try:
        while not (await asyncio.wait([waiting], timeout=CHECK_SECONDS))[0]:
            if not await asyncio.to_thread(has_live_node):
                raise ClusterLostError("no node of the Ray cluster is alive")
        return waiting.result()
    finally:
        waiting.cancel()
