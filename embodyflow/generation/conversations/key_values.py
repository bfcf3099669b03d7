"""Keys and values of conversations, and attention to them that does not depend on the other rows of a pass.

The cache holds blocks of a fixed number of positions. Attention multiplies each row with each block by products of one
shape, and adds up the blocks in order. A block after a row's own position, or before the layer's window, adds exact
zeros. So the result of a row has the same bits in a short cache and in a long one.

Keys are stored with their features before their positions, as their products with queries read them. For heads of 32
features, MKL takes half the time then on an Intel Xeon (family 6, model 207).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from embodyflow.generation.conversations import places as layout
from embodyflow.generation.conversations.places import Hidden, Places, Run, blocks_of
from embodyflow.policies.causal_lm.windows_causal_lm import Window

LEAST_EXPONENT = -87.0
"""Least exponent of a weight. A weight of e⁻⁸⁷ changes no sum with the largest one, which is 1.

MKL computes exponentials that round to 0 or to a denormal number one by one, ten times slower than others.
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
        self.num_slots, self._windows = num_slots, windows
        rows = (0, num_slots + 1, num_heads)
        keys = torch.empty((*rows, head_dim, layout.BLOCK), dtype=dtype, device=device)
        values = torch.empty((*rows, layout.BLOCK, head_dim), dtype=dtype, device=device)
        self._layers = [(keys, values) for _ in windows]

    def reserve(self, num_positions: int) -> None:
        """Make room for this number of positions in every slot."""
        more = blocks_of(num_positions) - len(self._layers[0][0])
        if more > 0:
            self._layers = [(_longer(keys, more), _longer(values, more)) for keys, values in self._layers]

    @torch.inference_mode()
    def copy(self, copies: "Copies") -> None:
        """Copy positions of slots to other slots."""
        if not copies.sources:
            return
        blocks, device = slice(copies.first_block, copies.end_block), self._layers[0][0].device
        targets = torch.tensor(list(copies.sources), device=device)
        sources = torch.tensor(list(copies.sources.values()), device=device)
        for layer in self._layers:
            for each in layer:
                each[blocks].index_copy_(1, targets, each[blocks].index_select(1, sources))

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
        return [BlockAttention(keys, values, places, window) for (keys, values), window in layers]


class BlockAttention:
    """Implements :class:`~embodyflow.generation.transformers_engine.decoder.Attention` on the blocks of one layer.

    Args:
        keys: Keys [N, S + 1, H, D, B] of N blocks of B positions.
        values: Values [N, S + 1, H, B, D].
        places: Places of the rows.
        window: Window of the layer.
    """

    def __init__(self, keys: Tensor, values: Tensor, places: Places, window: Window) -> None:
        self._keys, self._values, self._places, self._window = keys, values, places, window

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store the rows' keys and values, and return what the rows attend to."""
        places = self._places
        self._keys[places.blocks, places.slots, :, :, places.offsets] = keys
        self._values[places.blocks, places.slots, :, places.offsets] = values
        queries, results = (queries * scale)[None], list[Tensor]()
        for number, (part, hidden) in enumerate(zip(places.parts, places.hidden, strict=True)):
            attend = self._stage if number < places.num_stages else self._singles if part.slot is None else self._run
            results.append(attend(queries[:, part.first : part.end], part, hidden))
        return results[0] if len(results) == 1 else torch.cat(results)

    def _stage(self, queries: Tensor, part: Run, hidden: Hidden) -> Tensor:
        """Attend in the order of the slots, which copies no keys and values."""
        slots = self._places.slots[part.first : part.end]
        table = queries.new_zeros(1, self._places.num_slots, *queries.shape[2:]).index_copy_(1, slots, queries)
        keys, values = self._keys[: part.num_blocks], self._values[: part.num_blocks]
        return self._products(table, keys, values, hidden).index_select(0, slots)

    def _singles(self, queries: Tensor, part: Run, hidden: Hidden) -> Tensor:
        """Attend to a copy of each row's keys and values."""
        slots = self._places.slots[part.first : part.end]
        keys = self._keys[: part.num_blocks].index_select(1, slots)
        values = self._values[: part.num_blocks].index_select(1, slots)
        return self._products(queries, keys, values, hidden)

    def _run(self, queries: Tensor, part: Run, hidden: Hidden) -> Tensor:
        """Attend to the keys and values of one slot."""
        keys, values = self._keys[: part.num_blocks, part.slot], self._values[: part.num_blocks, part.slot]
        scores = _products(queries.expand(part.num_blocks, *queries.shape[1:]), keys)
        return _attend(scores, hidden.masks(self._window), lambda each: _products(each, values))

    def _products(self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Hidden) -> Tensor:
        scores = torch.matmul(queries, keys)
        return _attend(scores, hidden.masks(self._window), lambda each: torch.matmul(each, values))


def _attend(scores: Tensor, masks: tuple[Tensor, Tensor], weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the attention outputs [n, H, G, D] for scores [N, n, H, G, B] of N blocks.

    Args:
        scores: Scores.
        masks: Bias of the scores and factor of the weights, from :meth:`Hidden.masks`.
        weigh: Multiplies weights of the scores' shape with the blocks' values, to [N, n, H, G, D].
    """
    bias, factor = masks
    dtype, scores = scores.dtype, scores.float().add_(bias)
    weights = scores.sub_(scores.amax((0, -1), keepdim=True)).clamp_(min=LEAST_EXPONENT).exp_().mul_(factor)
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
    zeros = blocks.new_zeros(more, *blocks.shape[1:])
    return torch.cat([blocks, zeros]) if len(blocks) else zeros
