"""Passes of a decoder over rows of one token each: next tokens and tokens of prompts, of any conversations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embodyflow.generation.conversations.key_values import KeyValues, Places, Run, blocks_of
from embodyflow.generation.decoder import Decoder
from embodyflow.policies.onednn_linear import linear_of_any_size

MIN_RUN = 16
"""Least number of tokens of one slot for which a pass multiplies with the slot's cache in place.

A shorter chunk copies the cache for each token, which takes fewer operations.
"""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of a conversation that go through one pass.

    Attributes:
        slot: Slot of the cache.
        start: Position of the first token.
        tokens: Tokens, at least one.
    """

    slot: int
    start: int
    tokens: Sequence[int]


class RowPasses:
    """Computes chunks of tokens in passes of a few fixed widths.

    Args:
        decoder: Decoder of the model.
        key_values: Cache.
        widths: Numbers of rows that a pass may have, in ascending order.
        device: Device of the model.
    """

    def __init__(self, decoder: Decoder, key_values: KeyValues, widths: Sequence[int], device: torch.device) -> None:
        self._decoder, self._key_values, self._widths, self._device = decoder, key_values, widths, device

    @property
    def max_rows(self) -> int:
        """Most tokens of a pass."""
        return self._widths[-1]

    @torch.inference_mode()
    def hidden(self, chunks: Sequence[Chunk]) -> Tensor:
        """Write the keys and values of chunks, at most one per slot; return the hidden states of their tokens.

        Args:
            chunks: Chunks of at most :attr:`max_rows` tokens together.

        Returns:
            Hidden states [n, hidden size] of all n tokens, in the order of the chunks.
        """
        layout = _Layout(chunks, self._widths, self._key_values.num_slots)
        self._key_values.reserve(int(layout.positions.max()) + 1)
        positions = torch.from_numpy(layout.positions).to(self._device)
        slots = torch.from_numpy(layout.slots).to(self._device)
        places = Places(slots, positions, layout.num_single, layout.num_blocks, layout.runs)
        hidden = self._decoder.hidden(
            torch.from_numpy(layout.tokens).to(self._device),
            positions[:, None],
            self._key_values.attentions(places),
            linear_of_any_size,
        )
        return hidden[torch.from_numpy(layout.rows).to(self._device)]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [n, V], float32, of hidden states [n, hidden size]."""
        filled = hidden.new_zeros(_width(len(hidden), self._widths), hidden.shape[1])
        filled[: len(hidden)] = hidden
        return self._decoder.logits(filled, linear_of_any_size)[: len(hidden)].float()


class _Layout:
    """The rows of a pass: short chunks, rows that fill it up, and runs.

    Attributes:
        tokens, slots, positions: Token, slot and position of each row, int64 [w].
        num_single: Number of rows before the runs.
        num_blocks: Number of blocks up to their last position.
        runs: Runs.
        rows: Row of each token, in the order of the chunks, int64 [n].
    """

    def __init__(self, chunks: Sequence[Chunk], widths: Sequence[int], spare_slot: int) -> None:
        short = [index for index, chunk in enumerate(chunks) if len(chunk.tokens) < MIN_RUN]
        long = [index for index, chunk in enumerate(chunks) if len(chunk.tokens) >= MIN_RUN]
        num_tokens = sum(len(chunk.tokens) for chunk in chunks)
        num_filling = _width(num_tokens, widths) - num_tokens
        row, starts, self.runs = 0, [0] * len(chunks), list[Run]()
        filling = [Chunk(spare_slot, 0, (0,))] * num_filling
        for index in short:
            starts[index] = row
            row += len(chunks[index].tokens)
        row += num_filling
        self.num_single = row
        for index in long:
            slot, end = chunks[index].slot, row + len(chunks[index].tokens)
            self.runs.append(Run(slot, row, end, blocks_of(chunks[index].start + end - row)))
            starts[index], row = row, end
        ordered = [*(chunks[index] for index in short), *filling, *(chunks[index] for index in long)]
        lengths = [len(chunk.tokens) for chunk in ordered]
        self.tokens = np.array([token for chunk in ordered for token in chunk.tokens], np.int64)
        self.slots = np.repeat(np.array([chunk.slot for chunk in ordered], np.int64), lengths)
        self.positions = _ranges([chunk.start for chunk in ordered], lengths)
        self.num_blocks = blocks_of(int(self.positions[: self.num_single].max(initial=0)) + 1)
        self.rows = _ranges(starts, [len(chunk.tokens) for chunk in chunks])


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the numbers from each start on, as many as its length says, int64 [sum of the lengths]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(np.array(starts, np.int64) - (ends - lengths), lengths)


def _width(num_rows: int, widths: Sequence[int]) -> int:
    """Return the smallest width that holds the rows."""
    return next(width for width in widths if width >= num_rows)
