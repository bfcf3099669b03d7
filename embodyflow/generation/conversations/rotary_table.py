"""The rotary embeddings of all positions, which passes look up."""

import torch
from torch import Tensor

from embodyflow.generation.transformers_engine.decoder import Angles, Decoder

MULTIPLE = 64
"""The lengths of tables are multiples of this, so that no kernel computes the last positions one by one."""


class RotaryTable:
    """Looks up the rotary embeddings of positions, which takes less time than to compute them in every pass.

    Args:
        decoder: Decoder whose rotary embedding of a position depends on nothing else.
        device: Device of the model.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder, self._device = decoder, device
        self._table = decoder.angles(torch.arange(0, device=device)[:, None])

    def rows(self, positions: Tensor, num_positions: int) -> Angles:
        """Return the rotary embeddings of positions.

        Args:
            positions: Positions, int64 [n], less than ``num_positions``.
            num_positions: Number of positions that the table must have.
        """
        if num_positions > len(self._table.cos):
            length = max(-(-num_positions // MULTIPLE) * MULTIPLE, 2 * len(self._table.cos))
            self._table = self._decoder.angles(torch.arange(length, device=self._device)[:, None])
        return Angles(*(each.index_select(0, positions) for each in self._table))
