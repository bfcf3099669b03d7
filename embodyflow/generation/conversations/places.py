"""The places of a pass's rows in the cache, cut into parts that attend together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodyflow.policies.causal_lm.windows_causal_lm import Window, seen_within

BLOCK = 64
"""Positions of a block."""


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a pass.

    Attributes:
        first, end: First row, and the one after the last.
        num_blocks: Number of blocks up to the last position.
        slot: Slot of which the rows are consecutive tokens; ``None`` where they have slots of their own.
    """

    first: int
    end: int
    num_blocks: int
    slot: int | None = None


class Hidden:
    """The positions that rows do not see.

    Args:
        positions: Position of each row, int64 [n].
        num_blocks: Number of blocks up to the last position.
    """

    def __init__(self, positions: Tensor, num_blocks: int) -> None:
        self._positions, self._num_blocks = positions[:, None, None, None], num_blocks
        self._masks: dict[Window, tuple[Tensor, Tensor]] = {}

    def masks(self, window: Window) -> tuple[Tensor, Tensor]:
        """Return masks for layers with a window, float32 [N, n, 1, 1, B] each.

        Returns:
            The bias of the scores, 0 or minus infinity, and the factor of the weights, 1 or 0.
        """
        if window not in self._masks:
            every = torch.arange(self._num_blocks * BLOCK, device=self._positions.device).view(-1, 1, 1, 1, BLOCK)
            seen = seen_within(every, self._positions, window)
            factor = seen.float()
            self._masks[window] = torch.zeros_like(factor).masked_fill_(~seen, float("-inf")), factor
        return self._masks[window]


class Places:
    """The places of a pass's n rows in the cache.

    Args:
        slots: Slot of each row, int64 [n].
        positions: Position of each row, int64 [n].
        parts: Parts that cover the rows in order.
        num_stages: Number of parts at the beginning, each of rows of different slots, that attend as a table of all
            slots.
        num_slots: Number of slots of the cache.
    """

    def __init__(self, slots: Tensor, positions: Tensor, parts: Sequence[Run], num_stages: int, num_slots: int) -> None:
        self.blocks, self.slots, self.offsets = positions // BLOCK, slots, positions % BLOCK
        self.parts, self.num_stages, self.num_slots = parts, num_stages, num_slots
        self.hidden = [self._hidden(part, positions, number < num_stages) for number, part in enumerate(parts)]

    def _hidden(self, part: Run, positions: Tensor, is_stage: bool) -> Hidden:
        mine = positions[part.first : part.end]
        if is_stage:  # a slot without a row sees its first position, so that its result is finite
            slots = self.slots[part.first : part.end]
            mine = positions.new_zeros(self.num_slots).index_copy_(0, slots, mine)
        return Hidden(mine, part.num_blocks)


def blocks_of(num_positions: int) -> int:
    """Return the number of blocks that hold this number of positions."""
    return -(-num_positions // BLOCK)
