"""Passes of the widths that give each row the same bits, for a model on its device."""

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from embodyflow.generation.conversations.invariance import LENGTHS, agreeing_widths
from embodyflow.generation.conversations.key_values import KeyValues
from embodyflow.generation.conversations.row_passes import RowPasses
from embodyflow.generation.transformers_engine.decoder import Decoder
from embodyflow.policies.language.causal_lm.windows_causal_lm import windows_of

log = logging.getLogger(__name__)

WIDTHS = (8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows that a pass may have. Kernels treat one to four rows specially."""

ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles do not depend on the longest row of a pass."""


class InvariantPasses:
    """Builds passes whose rows do not depend on each other.

    Args:
        model: transformers model.
        decoder: Decoder of the model; with ``None``, no width is invariant.
        max_rows: Most rows of a pass.
    """

    def __init__(self, model: Any, decoder: Decoder | None, max_rows: int) -> None:
        self._model, self._decoder, self._max_rows = model, decoder, max_rows

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths that agree in every bit, in ascending order; empty if the device has none."""
        if self._decoder is None or self._model.model.rotary_emb.rope_type not in ROPE_TYPES:
            return ()
        allowed = tuple(width for width in WIDTHS if width <= self._max_rows) or (self._max_rows,)
        config = self._model.config
        length = min(max(LENGTHS), config.max_position_embeddings)
        widths = agreeing_widths(self._passes_of_check, allowed, config.vocab_size, length)
        if not widths:
            log.warning(
                "log-probs depend on the rows of a batch on %s, so a slow tool holds up all conversations of a call",
                self._model.device,
            )
        return widths

    def key_values(self, num_slots: int) -> KeyValues:
        """Return an empty cache."""
        config, attention = self._model.config, self._model.model.layers[0].self_attn
        sizes = (num_slots, config.num_key_value_heads, attention.head_dim)
        return KeyValues(windows_of(config), *sizes, self._model.dtype, self._model.device)

    def passes(self, key_values: KeyValues) -> RowPasses:
        """Return passes of :attr:`widths` over a cache."""
        return self._build(self.widths, key_values)

    def close(self) -> None:
        """Release the model."""
        self._model = self._decoder = None

    def _passes_of_check(self, widths: Sequence[int]) -> RowPasses:
        return self._build(widths, self.key_values(len(LENGTHS)))

    def _build(self, widths: Sequence[int], key_values: KeyValues) -> RowPasses:
        assert self._decoder is not None
        return RowPasses(self._decoder, key_values, widths, self._model.device)
