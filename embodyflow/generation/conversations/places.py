"""The places of a pass's rows in the cache, cut into parts that attend together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from embodyflow.policies.causal_lm.windows_causal_lm import Window, seen_within

BLOCK = 32
"""Positions of a block.

A row multiplies with whole blocks, so small ones waste less on short conversations. With 64 slots of 2 heads of 32
features on an AMD EPYC (Zen 4), a rollout of conversations of some 30 tokens takes 0.9 of its time with 64 positions,
and the products of 1,024 positions take as long.
"""

NO_SLOT = -1
"""Slot of rows that fill up a pass; they are at position 0."""

Reads = Literal["in order", "by table", "copies", "one slot"]
"""How a part of the rows reads keys and values.

- ``in order``: There are S rows, and row i belongs to slot i or fills up the pass.
- ``by table``: The rows are of different slots, and attend as a table of all slots.
- ``copies``: Each row gets a copy of its slot's keys and values.
- ``one slot``: The rows are consecutive tokens of one slot.
"""


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a pass.

    Attributes:
        first, end: First row, and the one after the last.
        num_blocks: Number of blocks up to the last position.
        reads: How the rows read keys and values.
        slot: Slot of rows that read ``one slot``.
    """

    first: int
    end: int
    num_blocks: int
    reads: Reads
    slot: int = NO_SLOT


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
    """The places of a pass's n rows in a cache of S slots.

    The cache is a list of cells of B positions. Cell ``1 + block · S + slot`` holds a block of a slot, and cell 0 takes
    the rows that fill up a pass.

    Args:
        slots: Slot of each row, int64 [n]; :data:`NO_SLOT` for rows that fill up.
        positions: Position of each row, int64 [n].
        parts: Parts that cover the rows in order.
        num_slots: Number of slots of the cache, S.
    """

    def __init__(self, slots: Tensor, positions: Tensor, parts: Sequence[Part], num_slots: int) -> None:
        self.slots, self.parts = slots, parts
        self.offsets = positions % BLOCK
        self.cells = (positions // BLOCK).mul_(num_slots).add_(slots).add_(1)
        self.hidden = [self._hidden(part, positions, num_slots) for part in parts]

    def _hidden(self, part: Part, positions: Tensor, num_slots: int) -> Hidden:
        mine = positions[part.first : part.end]
        if part.reads == "by table":  # a slot without a row sees its first position, so that its result is finite
            mine = positions.new_zeros(num_slots).index_copy_(0, self.slots[part.first : part.end], mine)
        return Hidden(mine, part.num_blocks)


def blocks_of(num_positions: int) -> int:
    """Return the number of blocks that hold this number of positions."""
    return -(-num_positions // BLOCK)
