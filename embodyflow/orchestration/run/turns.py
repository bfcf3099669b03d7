"""When iterations that are under way at the same time may go on.

With ``rollout.max_staleness`` = k the rollout of iteration i acts with the weights of version i − 1 − k, so it can be
gathered while the k iterations before it are trained on. Whose turn it is follows from the iterations' indices, never
from who is faster: the same run gives the same numbers on any machine, and after any failure.
"""

import asyncio
import time
from collections import defaultdict


class Turns:
    """Lets the iterations of a run go on in order.

    An iteration is rolled out once the nodes are done that need nothing of the trainer, and finished once it is
    committed and, where that is due, evaluated.

    Args:
        max_staleness: versions that the policy that acts lies behind the one that is trained; 0 makes an iteration wait
            until the one before is finished.

    Attributes:
        finished_at: ``time.perf_counter()`` when an iteration was finished last.
        rolled_out_at: when the iterations were rolled out that are not finished, by index.
    """

    def __init__(self, max_staleness: int) -> None:
        self.max_staleness = max_staleness
        self.begin_after(0)

    def begin_after(self, index: int) -> None:
        """Forget whatever was under way: the iterations up to this one are finished, and no others."""
        self._rolled_out, self._finished = _Milestones(index), _Milestones(index)
        self.finished_at = time.perf_counter()
        self.rolled_out_at: dict[int, float] = {}

    @property
    def last_finished(self) -> int:
        """The index of the last finished iteration."""
        return self._finished.last

    def rollout_version(self, index: int) -> int:
        """Return the version of the policy that an iteration's rollout acts with."""
        return max(index - 1 - self.max_staleness, 0)

    async def to_roll_out(self, index: int) -> None:
        """Wait until the rollout's weights are there, and the rollout before is done."""
        await self._finished.reached(self.rollout_version(index))
        await self._rolled_out.reached(index - 1)

    async def to_train(self, index: int) -> None:
        """Wait until the iteration before is finished: the trainer is the iteration's own from then on."""
        await self._finished.reached(index - 1)

    def rolled_out(self, index: int) -> None:
        """Say that the iteration's rollout is done; saying so again changes nothing."""
        self.rolled_out_at.setdefault(index, time.perf_counter())
        self._rolled_out.reach(index)

    def finished(self, index: int) -> None:
        """Say that the iteration is finished."""
        self.finished_at = time.perf_counter()
        self.rolled_out_at.pop(index, None)
        self._finished.reach(index)


class _Milestones:
    """Indices that are reached one after the other, up to ``last`` already."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._waited_for: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def reached(self, index: int) -> None:
        if index > self.last:
            await self._waited_for[index].wait()

    def reach(self, index: int) -> None:
        self.last = max(self.last, index)
        if (event := self._waited_for.pop(index, None)) is not None:
            event.set()
