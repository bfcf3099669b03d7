"""A key-value cache with one slot per sequence, so that sequences in a batch may have different lengths.

transformers' caches keep all rows of a batch at the same length by padding on the left, so a new row could start only
at the position of the longest one. In this cache a token lies at its own position, a new prompt overwrites a finished
sequence, and a mask hides everything after a row's last token. Layers that attend to a window keep all positions too:
a turn of a conversation may go back, and siblings copy any prefix.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, seen_within

GROWTH = 64  # minimum number of positions that a cache grows by


class SlotLayer(CacheLayerMixin):
    """Keys and values [S, H, C, D] of one attention layer: S slots, H heads, C positions, D features.

    Args:
        num_slots: Number of slots, S.
        features_first: Lay out keys in memory as [S, H, D, C].
    """

    def __init__(self, num_slots: int, features_first: bool = False) -> None:
        super().__init__()
        self._num_slots, self._features_first = num_slots, features_first
        self.positions: torch.Tensor
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate an empty cache with the shape and dtype of these states [n, H, t, D]."""
        # The memory must hold zeros: a masked position has weight 0, but 0 · NaN is NaN.
        shape = (self._num_slots, key_states.shape[1], 0)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def write(
        self, slots: torch.Tensor, positions: torch.Tensor, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> None:
        """Write states [n, H, t, D] to slots [n, 1] and positions [n, t] or [1, t]; grow the cache if needed."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[2] < self.length:
            more = max(self.length - self.keys.shape[2], self.keys.shape[2], GROWTH)
            self.keys = self._longer_keys(more)
            self.values = nn.functional.pad(self.values, (0, 0, 0, more))
        self.keys[slots, :, positions] = key_states.transpose(1, 2)
        self.values[slots, :, positions] = value_states.transpose(1, 2)

    def _longer_keys(self, more: int) -> torch.Tensor:
        if self._features_first:
            return nn.functional.pad(self.keys.transpose(-1, -2), (0, more)).transpose(-1, -2)
        return nn.functional.pad(self.keys, (0, 0, 0, more))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token's states [n, H, 1, D] to the first n slots; return their states up to ``length``."""
        num_rows = len(key_states)
        slots = torch.arange(num_rows, device=key_states.device)[:, None]
        self.write(slots, self.positions, key_states, value_states)
        return self.keys[:num_rows, :, : self.length], self.values[:num_rows, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the states that :meth:`update` returns."""
        return self.length, 0

    def get_seq_length(self) -> int:
        """Return the length of the longest row."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


class SlotCache(Cache):
    """The slots of all layers. Unfinished sequences always occupy the first slots.

    Args:
        num_layers: Number of attention layers.
        num_slots: Number of slots per layer.
        features_first: Lay out keys in memory with their features before their positions, as their product with the
            query of a single token reads them; MKL multiplies small heads faster then.
    """

    layers: list[SlotLayer]

    def __init__(self, num_layers: int, num_slots: int, features_first: bool = False) -> None:
        super().__init__(layers=[SlotLayer(num_slots, features_first) for _ in range(num_layers)])

    def insert(self, prefilled: DynamicCache, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy rows [n] of prefilled prompts to slots [n]."""
        length = prefilled.get_seq_length()
        positions = torch.arange(length, device=slots.device)[None]
        for layer, source in zip(self.layers, prefilled.layers, strict=True):
            layer.length = max(layer.length, length)
            layer.write(slots[:, None], positions, source.keys[rows], source.values[rows])

    def prepare_step(
        self, positions: torch.Tensor, length: int, windows: Collection[Window] = (None,)
    ) -> dict[Window, torch.Tensor]:
        """Set the positions that the next forward pass writes to.

        Args:
            positions: Positions [n, 1] of the next tokens in the first n slots.
            length: Largest of the positions plus 1.
            windows: Windows of the layers.

        Returns:
            The attention mask of that pass for each window, bool [n, 1, 1, length].
        """
        for layer in self.layers:
            layer.positions, layer.length = positions, length
        places = torch.arange(length, device=positions.device)
        return {window: seen_within(places, positions, window)[:, None, None] for window in {*windows}}

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy a slot over another."""
        for layer in self.layers:
            layer.keys[target] = layer.keys[source]
            layer.values[target] = layer.values[source]
