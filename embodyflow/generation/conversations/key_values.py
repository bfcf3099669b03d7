"""Keys and values of conversations, and attention to them that does not depend on the other rows of a pass.

The cache holds blocks of a fixed number of positions. Attention multiplies each row with each block by products of one
shape, and adds up the blocks in order. A block after a row's own position, or before the layer's window, adds exact
zeros. So the result of a row has the same bits in a short cache and in a long one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodyflow.policies.causal_lm.windows_causal_lm import Window, seen_within

BLOCK = 64
"""Positions of a block."""


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a pass that are consecutive tokens of one slot.

    Attributes:
        slot: Slot.
        first, end: First row, and the one after the last.
        num_blocks: Number of blocks up to the last token.
    """

    slot: int
    first: int
    end: int
    num_blocks: int


class Places:
    """The places of a pass's n rows in the cache.

    Args:
        slots: Slot of each row, int64 [n].
        positions: Position of each row, int64 [n].
        num_single: Number of rows before the runs; each gathers the keys and values of its own slot.
        num_blocks: Number of blocks up to the last position of these rows.
        runs: Runs, which cover the other rows in order.
    """

    def __init__(self, slots: Tensor, positions: Tensor, num_single: int, num_blocks: int, runs: Sequence[Run]) -> None:
        self.slots, self.num_single, self.num_blocks, self.runs = slots, num_single, num_blocks, runs
        self.blocks, self.offsets = positions // BLOCK, positions % BLOCK
        self._positions = positions[:, None, None, None]
        self._total = max([num_blocks, *(run.num_blocks for run in runs)])
        self._biases: dict[Window, Tensor] = {}

    def bias(self, window: Window) -> Tensor:
        """Return the bias of the scores in layers with a window, 0 or minus infinity, float32 [N, n, 1, 1, B]."""
        if window not in self._biases:
            every = torch.arange(self._total * BLOCK, device=self._positions.device).view(-1, 1, 1, 1, BLOCK)
            hidden = ~seen_within(every, self._positions, window)
            self._biases[window] = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))
        return self._biases[window]


class KeyValues:
    """The keys and values of S slots.

    A further slot S takes the rows that fill up a pass. The memory starts as zeros, because a masked position has
    weight 0, but 0 · NaN is NaN.

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
        shape = (0, num_slots + 1, num_heads, BLOCK, head_dim)
        self.num_slots, self._windows = num_slots, windows
        self._layers = [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in windows
        ]

    def reserve(self, num_positions: int) -> None:
        """Make room for this number of positions in every slot."""
        more = blocks_of(num_positions) - len(self._layers[0][0])
        if more > 0:
            self._layers = [(_longer(keys, more), _longer(values, more)) for keys, values in self._layers]

    @torch.inference_mode()
    def copy(self, source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of a slot to another."""
        blocks = blocks_of(num_positions)
        for keys, values in self._layers:
            keys[:blocks, target], values[:blocks, target] = keys[:blocks, source], values[:blocks, source]

    @torch.inference_mode()
    def copy_from(self, other: "KeyValues", source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of a slot of another cache to a slot of this one."""
        self.reserve(num_positions)
        blocks = blocks_of(num_positions)
        for own, theirs in zip(self._layers, other._layers, strict=True):
            for mine, their in zip(own, theirs, strict=True):
                mine[:blocks, target] = their[:blocks, source]

    def attentions(self, places: Places) -> list["BlockAttention"]:
        """Return the attention of every layer in a pass."""
        layers = zip(self._layers, self._windows, strict=True)
        return [BlockAttention(keys, values, places, places.bias(window)) for (keys, values), window in layers]


class BlockAttention:
    """Implements :class:`~embodyflow.generation.decoder.Attention` on the blocks of one layer.

    Args:
        keys: Keys [N, S + 1, H, B, D] of N blocks of B positions.
        values: Values, likewise.
        places: Places of the rows.
        bias: Bias of the scores, from :meth:`Places.bias`.
    """

    def __init__(self, keys: Tensor, values: Tensor, places: Places, bias: Tensor) -> None:
        self._keys, self._values, self._places, self._bias = keys, values, places, bias

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store the rows' keys and values, and return what the rows attend to."""
        places = self._places
        self._keys[places.blocks, places.slots, :, places.offsets] = keys
        self._values[places.blocks, places.slots, :, places.offsets] = values
        queries = (queries * scale)[None]
        parts = [self._singles(queries[:, : places.num_single])] if places.num_single else []
        parts += [self._run(queries[:, run.first : run.end], run) for run in places.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _singles(self, queries: Tensor) -> Tensor:
        places = self._places
        slots, blocks = places.slots[: places.num_single], places.num_blocks
        keys = self._keys[:blocks].index_select(1, slots)
        values = self._values[:blocks].index_select(1, slots)
        bias = self._bias[:blocks, : places.num_single]
        return _attend(torch.matmul(queries, keys.transpose(-1, -2)), bias, lambda each: torch.matmul(each, values))

    def _run(self, queries: Tensor, run: Run) -> Tensor:
        keys, values = self._keys[: run.num_blocks, run.slot], self._values[: run.num_blocks, run.slot]
        bias = self._bias[: run.num_blocks, run.first : run.end]
        scores = _products(queries.expand(run.num_blocks, *queries.shape[1:]), keys.transpose(-1, -2))
        return _attend(scores, bias, lambda each: _products(each, values))


def blocks_of(num_positions: int) -> int:
    """Return the number of blocks that hold this number of positions."""
    return -(-num_positions // BLOCK)


def _attend(scores: Tensor, bias: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the attention outputs [n, H, G, D] for scores [N, n, H, G, B] of N blocks.

    Args:
        scores: Scores.
        bias: Bias [N, n, 1, 1, B] of the scores.
        weigh: Multiplies weights of the scores' shape with the blocks' values, to [N, n, H, G, D].
    """
    dtype, scores = scores.dtype, scores.float().add_(bias)
    weights = scores.sub_(scores.amax((0, -1), keepdim=True)).exp_()
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


def _longer(blocks: Tensor, more: int) -> Tensor:
    return torch.cat([blocks, blocks.new_zeros(more, *blocks.shape[1:])])
