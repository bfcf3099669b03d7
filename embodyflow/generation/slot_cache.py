"""A key-value cache with a slot per sequence, each filled from its own first position.

transformers' caches keep all rows of a batch at the same length, by padding on the left. A row that takes the place of
a finished one would then have to start where the longest row is. Here a row's tokens lie at their own positions, a new
prompt is written over a finished sequence, and a mask hides what lies behind a row's last token.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

GROWTH = 64  # positions, the least that a cache grows by


class SlotLayer(CacheLayerMixin):
    """Keys and values [S, H, C, D] of one attention layer: S slots, H heads, C positions, D features."""

    def __init__(self, num_slots: int) -> None:
        super().__init__()
        self._num_slots = num_slots
        self.positions: torch.Tensor
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make room for no position yet, in the shape and dtype of these states [n, H, t, D]."""
        # Zeros, never uninitialised memory: a hidden position's weight is 0, and 0 · NaN is NaN.
        shape = (self._num_slots, key_states.shape[1], 0)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def write(
        self, slots: torch.Tensor, positions: torch.Tensor, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> None:
        """Write states [n, H, t, D] to slots [n, 1] and positions [n, t] or [1, t], making room where needed."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[2] < self.length:
            more = max(self.length - self.keys.shape[2], self.keys.shape[2], GROWTH)
            self.keys = nn.functional.pad(self.keys, (0, 0, 0, more))
            self.values = nn.functional.pad(self.values, (0, 0, 0, more))
        self.keys[slots, :, positions] = key_states.transpose(1, 2)
        self.values[slots, :, positions] = value_states.transpose(1, 2)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token's states [n, H, 1, D] for each of the first n slots; return those slots' up to ``length``."""
        num_rows = len(key_states)
        slots = torch.arange(num_rows, device=key_states.device)[:, None]
        self.write(slots, self.positions, key_states, value_states)
        return self.keys[:num_rows, :, : self.length], self.values[:num_rows, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of what :meth:`update` returns."""
        return self.length, 0

    def get_seq_length(self) -> int:
        """Return the length of the longest row."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


class SlotCache(Cache):
    """The layers' slots; the sequences under way always fill the first ones."""

    layers: list[SlotLayer]

    def __init__(self, num_layers: int, num_slots: int) -> None:
        super().__init__(layers=[SlotLayer(num_slots) for _ in range(num_layers)])

    def insert(self, prefilled: DynamicCache, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy rows [n] of prompts' states to slots [n]."""
        length = prefilled.get_seq_length()
        positions = torch.arange(length, device=slots.device)[None]
        for layer, source in zip(self.layers, prefilled.layers, strict=True):
            layer.length = max(layer.length, length)
            layer.write(slots[:, None], positions, source.keys[rows], source.values[rows])

    def expect(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Say where the next forward pass writes.

        Args:
            positions: [n, 1] of the next token of the first n slots.
            length: the largest of them plus 1.

        Returns:
            The mask of that pass, bool [n, 1, 1, length]: a token sees the positions up to its own.
        """
        for layer in self.layers:
            layer.positions, layer.length = positions, length
        return (torch.arange(length, device=positions.device) <= positions)[:, None, None]

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy a slot over another."""
        for layer in self.layers:
            layer.keys[target] = layer.keys[source]
            layer.values[target] = layer.values[source]
