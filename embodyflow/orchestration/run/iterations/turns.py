"""The order in which iterations in flight may proceed.

With ``rollout.max_staleness`` = k the rollout of iteration i uses the weights of version i − 1 − k, so it can run while
the trainer works on the k iterations before it. The order follows from the iterations' indices, never from timing: a
run gives the same numbers on any machine and after any failure.

With ``rollout.interrupt`` a rollout has a segment for each of the versions i − 1 − k, …, i − 1. A segment waits until
the iteration that makes its version is finished, and until the rollout before has had its segment of the same version.
Between segments a rollout does not hold the workers. So a segment waits only for segments of earlier versions, and of
earlier iterations with the same version: no two wait for each other.
"""

import asyncio
import time
from collections import defaultdict

from embodyflow.process.core_time import core_time_so_far
from embodyflow.process.tracing import span


class Turns:
    """Lets the iterations of a run proceed in order.

    An iteration is rolled out once the nodes that do not depend on the trainer are done. It is finished once it is
    committed and the evaluation that training waits for, if any, is recorded.

    Args:
        max_staleness: How many versions rollouts may lag behind the trainer. With 0 an iteration waits until the one
            before it is finished.
        swaps_weights: Whether a rollout goes on with newer weights, segment by segment.

    Attributes:
        is_restored: Whether the last finished iteration is a restored one, whose evaluation and alarms may be due.
        finished_at: ``time.perf_counter()`` when the last iteration finished.
        core_time_at_finish: Time on cores so far, of the flow's process, at that moment.
        rolled_out_at: ``time.perf_counter()`` when each unfinished iteration was rolled out, by index.
    """

    def __init__(self, max_staleness: int, *, swaps_weights: bool = False) -> None:
        self.max_staleness, self.swaps_weights = max_staleness, swaps_weights
        self.reset(0)

    def reset(self, index: int) -> None:
        """Forget the iterations in flight: exactly those up to ``index`` are finished."""
        self.is_restored = True
        self._rolled_out, self._finished = _Milestones("rollout", index), _Milestones("end", index)
        self._sampled: dict[int, _Milestones] = {}  # by version: iterations whose segment with it is done
        self.finished_at, self.core_time_at_finish = time.perf_counter(), core_time_so_far()
        self.rolled_out_at: dict[int, float] = {}

    @property
    def last_finished(self) -> int:
        """The index of the last finished iteration."""
        return self._finished.last

    def rollout_version(self, index: int) -> int:
        """Return the policy version that an iteration's rollout uses, or begins with."""
        return max(index - 1 - self.max_staleness, 0)

    def rollout_versions(self, index: int) -> range:
        """Return the policy versions that an iteration's rollout uses, one for each segment of its responses."""
        first = self.rollout_version(index)
        return range(first, index if self.swaps_weights else first + 1)

    async def wait_to_roll_out(self, index: int) -> None:
        """Wait until the rollout's first weights are published and the rollout before it is done with them."""
        await self.wait_to_sample(index, self.rollout_version(index))

    async def wait_to_sample(self, index: int, version: int) -> None:
        """Wait until a version is published and the rollout before has sampled its segment with it, or is done."""
        await self._finished.wait_for(version)
        if self.swaps_weights:
            await self._of(version).wait_for(index - 1)
        else:
            await self._rolled_out.wait_for(index - 1)

    async def wait_to_train(self, index: int) -> None:
        """Wait until the iteration before is finished and has left the trainer."""
        await self._finished.wait_for(index - 1)

    def mark_sampled(self, index: int, version: int) -> None:
        """Mark the iteration's segment with a version as sampled; repeated calls change nothing."""
        self._of(version).mark(index)

    def mark_rolled_out(self, index: int) -> None:
        """Mark the iteration as rolled out; repeated calls change nothing."""
        self.rolled_out_at.setdefault(index, time.perf_counter())
        for version in self.rollout_versions(index):  # also of rows that an earlier process sampled
            self.mark_sampled(index, version)
        self._rolled_out.mark(index)

    def mark_finished(self, index: int) -> None:
        """Mark the iteration as finished."""
        self.is_restored = False
        self.finished_at, self.core_time_at_finish = time.perf_counter(), core_time_so_far()
        self.rolled_out_at.pop(index, None)
        self._sampled.pop(index - 1 - self.max_staleness, None)  # no later iteration uses that version
        self._finished.mark(index)

    def _of(self, version: int) -> "_Milestones":
        """Return the iterations whose segment with a version is done; the first to use it is ``version + 1``."""
        unused = _Milestones(f"segment of version {version}", max(version, self.last_finished))
        return self._sampled.setdefault(version, unused)


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
