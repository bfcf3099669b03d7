"""The order in which iterations in flight may proceed.

With ``rollout.max_staleness`` = k the rollout of iteration i uses the weights of version i − 1 − k, so it can run while
the trainer works on the k iterations before it. The order follows from the iterations' indices, never from timing: a
run gives the same numbers on any machine and after any failure.
"""

import asyncio
import time
from collections import defaultdict

from embodyflow.process.tracing import span


class Turns:
    """Lets the iterations of a run proceed in order.

    An iteration is rolled out once the nodes that do not depend on the trainer are done. It is finished once it is
    committed and, if due, evaluated.

    Args:
        max_staleness: How many versions rollouts may lag behind the trainer. With 0 an iteration waits until the one
            before it is finished.

    Attributes:
        finished_at: ``time.perf_counter()`` when the last iteration finished.
        rolled_out_at: ``time.perf_counter()`` when each unfinished iteration was rolled out, by index.
    """

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.reset(0)

    def reset(self, index: int) -> None:
        """Forget the iterations in flight: exactly those up to ``index`` are finished."""
        self._rolled_out, self._finished = _Milestones("rollout", index), _Milestones("end", index)
        self.finished_at = time.perf_counter()
        self.rolled_out_at: dict[int, float] = {}

    @property
    def last_finished(self) -> int:
        """The index of the last finished iteration."""
        return self._finished.last

    def rollout_version(self, index: int) -> int:
        """Return the policy version that an iteration's rollout uses."""
        return max(index - 1 - self.max_staleness, 0)

    async def wait_to_roll_out(self, index: int) -> None:
        """Wait until the rollout's weights are published and the rollout before it is done."""
        await self._finished.wait_for(self.rollout_version(index))
        await self._rolled_out.wait_for(index - 1)

    async def wait_to_train(self, index: int) -> None:
        """Wait until the iteration before is finished and has left the trainer."""
        await self._finished.wait_for(index - 1)

    def mark_rolled_out(self, index: int) -> None:
        """Mark the iteration as rolled out; repeated calls change nothing."""
        self.rolled_out_at.setdefault(index, time.perf_counter())
        self._rolled_out.mark(index)

    def mark_finished(self, index: int) -> None:
        """Mark the iteration as finished."""
        self.finished_at = time.perf_counter()
        self.rolled_out_at.pop(index, None)
        self._finished.mark(index)


class _Milestones:
    """Indices that are reached in order; those up to ``last`` have been."""

    def __init__(self, name: str, last: int) -> None:
        self._name, self.last = name, last
        self._events: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def wait_for(self, index: int) -> None:
        if index > self.last:
            with span(f"wait for the {self._name} of iteration {index}", "wait", track="waits"):
                await self._events[index].wait()

    def mark(self, index: int) -> None:
        self.last = max(self.last, index)
        if (event := self._events.pop(index, None)) is not None:
            event.set()
