"""Keys and values of conversations, and attention to them that does not depend on the other rows of a pass.

The cache holds blocks of a fixed number of positions in cells, as
:class:`~embodyflow.generation.conversations.places.Places` numbers them. Attention multiplies each row with each block
by products of one shape, and adds up the blocks in order. A block after a row's own position, or before the layer's
window, adds exact zeros. So the result of a row has the same bits in a short cache and in a long one.

Keys are stored with their features before their positions, as their products with queries read them. For heads of 32
features, MKL takes half the time then on an Intel Xeon (family 6, model 207).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from embodyflow.generation.conversations import places as layout
from embodyflow.generation.conversations.places import Hidden, Part, Places, Reads, blocks_of
from embodyflow.policies.language.causal_lm.windows_causal_lm import Window

GROWTH = 1.25
"""Factor by which the cache grows at least; if it grew by one block, copying would take more time with each."""

LOG2_E = math.log2(math.e)
"""Factor of scores whose weights are powers of two.

PyTorch's ``exp2`` gives exactly 0 for minus infinity as fast as any other power. Its ``exp`` calls MKL on an x86 CPU,
which computes exponentials that round to 0 or to a denormal number one by one, ten times slower than others.
"""


class Copies:
    """Copies of prefixes between slots, which are made together.

    Attributes:
        sources: Source of each target. What was in the slots before is copied.
        first_block, end_block: First block that is copied, and the one after the last.
    """

    def __init__(self) -> None:
        self.sources: dict[int, int] = {}
        self.first_block = self.end_block = 0

    def add(self, source: int, target: int, start: int, end: int) -> None:
        """Copy the positions from ``start`` to ``end``; a source may be the target of an earlier copy.

        Whole blocks are copied. A target holds the same tokens as its source before ``start``, and none after ``end``.
        """
        self.first_block = min(self.first_block, start // layout.BLOCK) if self.sources else start // layout.BLOCK
        self.end_block = max(self.end_block, blocks_of(end))
        self.sources[target] = self.sources.get(source, source)


class KeyValues:
    """The keys and values of S slots.

    The memory starts as zeros, because a masked position has weight 0, but 0 · NaN is NaN.

    Args:
        windows: Window of each layer.
        num_slots: Number of slots, S.
        num_heads: Number of heads with their own keys and values, H.
        head_dim: Features of a head, D.
        dtype: Precision.
        device: Device.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        num_slots: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_slots, self._windows = num_slots, windows
        keys = torch.zeros((1, num_heads, head_dim, layout.BLOCK), dtype=dtype, device=device)
        values = torch.zeros((1, num_heads, layout.BLOCK, head_dim), dtype=dtype, device=device)
        self._layers = [(keys, values) for _ in windows]
        self._num_blocks = 0
        self._value_offsets = torch.arange(num_heads, device=device) * layout.BLOCK
        self._key_offsets = torch.arange(num_heads * head_dim, device=device) * layout.BLOCK

    def reserve(self, num_positions: int) -> None:
        """Make room for this number of positions in every slot."""
        if blocks_of(num_positions) <= self._num_blocks:
            return
        num_blocks = max(blocks_of(num_positions), int(self._num_blocks * GROWTH))
        more = (num_blocks - self._num_blocks) * self.num_slots
        self._layers = [(_longer(keys, more), _longer(values, more)) for keys, values in self._layers]
        self._num_blocks = num_blocks

    @torch.inference_mode()
    def copy(self, copies: "Copies") -> None:
        """Copy positions of slots to other slots."""
        if not copies.sources:
            return
        device = self._value_offsets.device
        first = 1 + torch.arange(copies.first_block, copies.end_block, device=device)[:, None] * self.num_slots
        targets = (first + torch.tensor(list(copies.sources), device=device)).view(-1)
        sources = (first + torch.tensor(list(copies.sources.values()), device=device)).view(-1)
        for layer in self._layers:
            for cells in layer:
                cells.index_copy_(0, targets, cells.index_select(0, sources))

    @torch.inference_mode()
    def copy_from(self, other: "KeyValues", source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of a slot of another cache to a slot of this one."""
        self.reserve(num_positions)
        blocks = blocks_of(num_positions)
        for own, theirs in zip(self._layers, other._layers, strict=True):
            for mine, their in zip(own, theirs, strict=True):
                _of_slot(mine, target, blocks, self.num_slots).copy_(_of_slot(their, source, blocks, other.num_slots))

    def attentions(self, places: Places) -> list["BlockAttention"]:
        """Return the attention of every layer in a pass."""
        keys, values = self._key_offsets, self._value_offsets
        first_keys, first_values = (
            torch.from_numpy(places.cells * (len(offsets) * layout.BLOCK) + places.offsets).to(offsets.device)
            for offsets in (keys, values)
        )
        targets = _Targets((first_keys[:, None] + keys).view(-1), (first_values[:, None] + values).view(-1))
        layers = zip(self._layers, self._windows, strict=True)
        return [BlockAttention(*layer, places, targets, window, self.num_slots) for layer, window in layers]


class _Targets(NamedTuple):
    """Indices in the cache for the keys and values of a pass's n rows, the same in each layer.

    Attributes:
        keys: Index of each feature of each head in the flat keys, int64 [n · H · D].
        values: Index of each head among the rows of D features of the values, int64 [n · H].
    """

    keys: Tensor
    values: Tensor


class BlockAttention:
    """Implements :class:`~embodyflow.generation.transformers_engine.decoder.Attention` on the cells of one layer.

    Args:
        keys: Keys [1 + N · S, H, D, B] of N blocks of S slots with B positions.
        values: Values [1 + N · S, H, B, D].
        places: Places of the rows.
        targets: Indices in the cache for the rows' keys and values.
        window: Window of the layer.
        num_slots: Number of slots, S.
    """

    def __init__(
        self, keys: Tensor, values: Tensor, places: Places, targets: _Targets, window: Window, num_slots: int
    ) -> None:
        self._keys, self._values, self._places, self._targets = keys, values, places, targets
        self._window, self._num_slots = window, num_slots

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store the rows' keys and values, and return what the rows attend to."""
        self._keys.view(-1).scatter_(0, self._targets.keys, keys.reshape(-1))
        self._values.view(-1, values.shape[-1]).index_copy_(0, self._targets.values, values.flatten(0, 1))
        queries, results = (queries * (scale * LOG2_E))[None], list[Tensor]()
        for part, hidden in zip(self._places.parts, self._places.hidden, strict=True):
            results.append(ATTEND_BY[part.reads](self, queries[:, part.first : part.end], part, hidden))
        return results[0] if len(results) == 1 else torch.cat(results)

    def _in_order(self, queries: Tensor, part: Part, hidden: Hidden) -> Tensor:
        """Attend row by slot, which copies no keys and values."""
        return self._products(queries, self._blocks(self._keys, part), self._blocks(self._values, part), hidden)

    def _by_table(self, queries: Tensor, part: Part, hidden: Hidden) -> Tensor:
        """Attend in the order of the slots, which copies the queries but no keys and values."""
        slots = self._places.slots[part.first : part.end]
        table = queries.new_zeros(1, self._num_slots, *queries.shape[2:]).index_copy_(1, slots, queries)
        return self._in_order(table, part, hidden).index_select(0, slots)

    def _copies(self, queries: Tensor, part: Part, hidden: Hidden) -> Tensor:
        """Attend to a copy of each row's keys and values."""
        blocks = torch.arange(part.num_blocks, device=queries.device)[:, None] * self._num_slots
        cells = (blocks + self._places.slots[part.first : part.end] + 1).view(-1)  # masked blocks may be of any slot
        shape = (part.num_blocks, part.end - part.first)
        keys, values = (
            each.index_select(0, cells).view(*shape, *each.shape[1:]) for each in (self._keys, self._values)
        )
        return self._products(queries, keys, values, hidden)

    def _one_slot(self, queries: Tensor, part: Part, hidden: Hidden) -> Tensor:
        """Attend to the keys and values of one slot."""
        keys, values = (
            _of_slot(each, part.slot, part.num_blocks, self._num_slots) for each in (self._keys, self._values)
        )
        scores = _products(queries.expand(part.num_blocks, *queries.shape[1:]), keys)
        return _attend(scores, hidden.bias(self._window), lambda each: _products(each, values))

    def _blocks(self, cells: Tensor, part: Part) -> Tensor:
        """Return the first blocks of all slots, [N, S, H, ...]."""
        whole = cells[1 : 1 + part.num_blocks * self._num_slots]
        return whole.view(part.num_blocks, self._num_slots, *cells.shape[1:])

    def _products(self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Hidden) -> Tensor:
        scores = torch.matmul(queries, keys)
        return _attend(scores, hidden.bias(self._window), lambda each: torch.matmul(each, values))


ATTEND_BY: dict[Reads, Callable[[BlockAttention, Tensor, Part, Hidden], Tensor]] = {
    "in order": BlockAttention._in_order,
    "by table": BlockAttention._by_table,
    "copies": BlockAttention._copies,
    "one slot": BlockAttention._one_slot,
}
"""Methods, not bound ones: an attention that refers to itself keeps its cache until the next garbage collection."""


def _of_slot(cells: Tensor, slot: int, num_blocks: int, num_slots: int) -> Tensor:
    """Return the first blocks of a slot, a view [N, H, ...]."""
    return cells[1 + slot : 1 + num_blocks * num_slots : num_slots]


def _attend(scores: Tensor, bias: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the attention outputs [n, H, G, D] for scores [N, n, H, G, B] of N blocks.

    Args:
        scores: Scores times :data:`LOG2_E`.
        bias: Bias of the scores, from :meth:`Hidden.bias`.
        weigh: Multiplies weights of the scores' shape with the blocks' values, to [N, n, H, G, D].
    """
    dtype, scores = scores.dtype, scores.float().add_(bias)
    weights = scores.sub_(scores.amax((0, -1), keepdim=True)).exp2_()
    total, output = _add_up(weights.sum(-1, keepdim=True)), _add_up(weigh(weights.to(dtype)).float())
    return (output / total).to(dtype)


def _add_up(parts: Tensor) -> Tensor:
    """Add up along the first dimension in order: further zeros then change no bit, as they may in ``Tensor.sum``."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products [N, n, H, G, Y] of [N, n, H, G, X] with [N, H, X, Y].

    Each row has its own product, as it has where it gathers its slot. A single product of all rows would be faster, and
    could round otherwise.
    """
    num_rows = left.shape[1]
    blocks = []
    for rows, block in zip(left, right, strict=True):
        heads = [torch.bmm(rows[:, head], block[head].expand(num_rows, -1, -1)) for head in range(len(block))]
        blocks.append(torch.stack(heads, 1))
    return torch.stack(blocks)


def _longer(cells: Tensor, more: int) -> Tensor:
    longer = cells.new_zeros(len(cells) + more, *cells.shape[1:])
    longer[: len(cells)] = cells
    return longer
