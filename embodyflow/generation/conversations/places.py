"""The places of a pass's rows in the cache, cut into parts that attend together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, seen_within

BLOCK = 32
"""Positions of a block.

A row multiplies with whole blocks, so small ones waste less on short conversations. With 64 slots of 2 heads of 32
features on an AMD EPYC (Zen 4), a rollout of conversations of some 30 tokens takes 0.9 of its time with 64 positions,
and the products of 1,024 positions take as long.
"""

Indices = npt.NDArray[np.int64]

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
        self._biases: dict[Window, Tensor] = {}

    def bias(self, window: Window) -> Tensor:
        """Return the bias of the scores in layers with a window, 0 or minus infinity, float32 [N, n, 1, 1, B]."""
        if window not in self._biases:
            every = torch.arange(self._num_blocks * BLOCK, device=self._positions.device).view(-1, 1, 1, 1, BLOCK)
            seen = seen_within(every, self._positions, window)
            self._biases[window] = torch.where(seen, 0.0, float("-inf"))
        return self._biases[window]


class Places:
    """The places of a pass's n rows in a cache of S slots.

    The cache is a list of cells of B positions. Cell ``1 + block · S + slot`` holds a block of a slot, and cell 0 takes
    the rows that fill up a pass.

    Args:
        slots: Slot of each row, int64 [n]; :data:`NO_SLOT` for rows that fill up.
        positions: Position of each row, int64 [n].
        parts: Parts that cover the rows in order.
        num_slots: Number of slots of the cache, S.
        device: Device of the cache.

    Attributes:
        slots: Slots on the device.
        cells, offsets: Cell of each row and the position within it, int64 [n], on the host.
        hidden: Positions that the rows of each part do not see.
    """

    def __init__(
        self, slots: Indices, positions: Indices, parts: Sequence[Part], num_slots: int, device: torch.device
    ) -> None:
        self.parts, self.slots = parts, torch.from_numpy(slots).to(device)
        blocks, self.offsets = np.divmod(positions, BLOCK)
        self.cells: Indices = blocks * num_slots + slots + 1
        self.hidden = list[Hidden]()
        for part in parts:
            mine = positions[part.first : part.end]
            if part.reads == "by table":
                mine = _in_table(mine, slots[part.first : part.end], num_slots)
            self.hidden.append(Hidden(torch.from_numpy(mine).to(device), part.num_blocks))


def _in_table(positions: Indices, slots: Indices, num_slots: int) -> Indices:
    """Return the positions in a table of all slots; one without a row sees position 0, so that its result is finite."""
    table = np.zeros(num_slots, np.int64)
    table[slots] = positions
    return table


def blocks_of(num_positions: int) -> int:
    """Return the number of blocks that hold this number of positions."""
    return -(-num_positions // BLOCK)
