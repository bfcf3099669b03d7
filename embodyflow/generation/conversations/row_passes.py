"""Passes of a decoder over rows of one token each: next tokens and tokens of prompts, of any conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from embodyflow.generation.conversations.key_values import KeyValues
from embodyflow.generation.conversations.places import NO_SLOT, Part, Places, Reads, blocks_of
from embodyflow.generation.conversations.rotary_table import RotaryTable
from embodyflow.generation.transformers_engine.decoder import Decoder
from embodyflow.policies.language.layers.onednn_linear import linear_of_any_size

MIN_RUN = 16
"""Least number of tokens of one slot for which a pass multiplies with the slot's cache in place.

A shorter chunk copies the cache for each token, which takes fewer operations.
"""


class Chunk(NamedTuple):
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

    Attributes:
        device: Device of the model.
    """

    def __init__(self, decoder: Decoder, key_values: KeyValues, widths: Sequence[int], device: torch.device) -> None:
        self._decoder, self._key_values, self._widths, self.device = decoder, key_values, widths, device
        self._rotary = RotaryTable(decoder, device)

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
        num_slots = self._key_values.num_slots
        layout = _layout(chunks, self._widths, num_slots)
        num_positions = int(layout.positions.max()) + 1
        self._key_values.reserve(num_positions)
        places = Places(layout.slots, layout.positions, layout.parts, num_slots, self.device)
        hidden = self._decoder.hidden(
            torch.from_numpy(layout.tokens).to(self.device),
            self._rotary.rows(torch.from_numpy(layout.positions).to(self.device), num_positions),
            self._key_values.attentions(places),
            linear_of_any_size,
        )
        return hidden[torch.from_numpy(layout.rows).to(self.device)]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [n, V], float32, of hidden states [n, hidden size]."""
        num_rows = len(hidden)
        filled = pad(hidden, (0, 0, 0, _width(num_rows, self._widths) - num_rows))
        return self._decoder.logits(filled, linear_of_any_size)[:num_rows].float()


@dataclass(frozen=True)
class _Piece:
    """Consecutive rows of a pass.

    Attributes:
        index: Number of the chunk that the tokens belong to; the number of chunks for rows that fill up the pass.
        offset: Number of tokens of the chunk before.
        chunk: Tokens.
    """

    index: int
    offset: int
    chunk: Chunk

    def cut(self, start: int, end: int | None = None) -> "_Piece":
        """Return the tokens from number ``start`` to ``end``."""
        slot, first, tokens = self.chunk.slot, self.chunk.start, self.chunk.tokens
        return _Piece(self.index, self.offset + start, Chunk(slot, first + start, tokens[start:end]))


@dataclass(frozen=True)
class _Layout:
    """The rows of a pass: their tokens, and how they are cut into parts.

    A part of one token of at least half of the slots attends in the order of the slots, which is less work than copying
    keys and values.

    Attributes:
        tokens, slots, positions: Token, slot and position of each row, int64 [w].
        parts: Parts of the rows.
        rows: Row of each token, in the order of the chunks, int64 [n].
    """

    tokens: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    parts: list[Part]
    rows: npt.NDArray[np.int64]


def _layout(chunks: Sequence[Chunk], widths: Sequence[int], num_slots: int) -> _Layout:
    """Return the layout of chunks; most passes have one token of each."""
    if all(len(chunk.tokens) == 1 for chunk in chunks):
        return _layout_of_singles(chunks, _width(len(chunks), widths), num_slots)
    return _layout_of_chunks(chunks, widths, num_slots)


def _layout_of_singles(chunks: Sequence[Chunk], width: int, num_slots: int) -> _Layout:
    """Return the layout of chunks of one token; :func:`_layout_of_chunks` takes ten times as long for them."""
    starts = [chunk.start for chunk in chunks]
    of_chunks = np.array([chunk.slot for chunk in chunks])
    rows, end, reads = _reading_of_singles(of_chunks, width, num_slots)
    parts = [Part(0, end, blocks_of(max(starts) + 1), reads)]
    if end < width:
        parts.append(Part(end, width, blocks_of(1), "copies"))
    tokens, slots, positions = np.zeros(width, np.int64), np.full(width, NO_SLOT), np.zeros(width, np.int64)
    slots[rows], positions[rows], tokens[rows] = of_chunks, starts, [chunk.tokens[0] for chunk in chunks]
    return _Layout(tokens, slots, positions, parts, rows)


def _reading_of_singles(
    slots: npt.NDArray[np.int64], width: int, num_slots: int
) -> tuple[npt.NDArray[np.int64], int, Reads]:
    """Return the rows of single tokens of these slots, the end of their part, and how they read."""
    number = len(slots)
    if 2 * number < num_slots:
        return np.arange(number), width, "copies"
    return (slots, num_slots, "in order") if num_slots <= width else (np.arange(number), number, "by table")


def _layout_of_chunks(chunks: Sequence[Chunk], widths: Sequence[int], num_slots: int) -> _Layout:
    pieces = [_Piece(index, 0, chunk) for index, chunk in enumerate(chunks)]
    stages, rest = _stages([piece for piece in pieces if len(piece.chunk.tokens) < MIN_RUN], num_slots)
    runs = [[piece] for piece in pieces if len(piece.chunk.tokens) >= MIN_RUN]
    chunk_lengths = [len(chunk.tokens) for chunk in chunks]
    num_filling = _width(sum(chunk_lengths), widths) - sum(chunk_lengths)
    rest += [_Piece(len(chunks), 0, Chunk(NO_SLOT, 0, (0,)))] * num_filling
    parts = list[Part]()
    for part in stages:
        _append(parts, part, "by table")
    if rest:
        _append(parts, rest, "copies")
    for part in runs:
        _append(parts, part, "one slot", part[0].chunk.slot)
    ordered = [piece for part in (*stages, rest, *runs) for piece in part]
    lengths = [len(piece.chunk.tokens) for piece in ordered]
    return _Layout(
        np.array([token for piece in ordered for token in piece.chunk.tokens], np.int64),
        np.repeat(np.array([piece.chunk.slot for piece in ordered], np.int64), lengths),
        _ranges([piece.chunk.start for piece in ordered], lengths),
        parts,
        _rows(ordered, lengths, chunk_lengths),
    )


def _append(parts: list[Part], pieces: Sequence[_Piece], reads: Reads, slot: int = NO_SLOT) -> None:
    first = parts[-1].end if parts else 0
    num_rows = sum(len(piece.chunk.tokens) for piece in pieces)
    longest = max(piece.chunk.start + len(piece.chunk.tokens) for piece in pieces)
    parts.append(Part(first, first + num_rows, blocks_of(longest), reads, slot))


def _stages(pieces: Sequence[_Piece], num_slots: int) -> tuple[list[list[_Piece]], list[_Piece]]:
    """Return stages of one token of each piece, as long as they fill half of the slots, and what is left."""
    stages = list[list[_Piece]]()
    while pieces and 2 * len(pieces) >= num_slots:
        stages.append([piece if len(piece.chunk.tokens) == 1 else piece.cut(0, 1) for piece in pieces])
        pieces = [piece.cut(1) for piece in pieces if len(piece.chunk.tokens) > 1]
    return stages, [*pieces]


def _rows(ordered: Sequence[_Piece], lengths: Sequence[int], chunk_lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the row of each token of the chunks, int64 [n], for pieces with a row per token."""
    starts = np.concatenate([[0], np.cumsum(chunk_lengths)])  # rows that fill up a pass share the place after the last
    rows = np.empty(starts[-1] + 1, np.int64)
    rows[_ranges([int(starts[piece.index]) + piece.offset for piece in ordered], lengths)] = np.arange(sum(lengths))
    return rows[:-1]


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the numbers from each start on, as many as its length says, int64 [sum of the lengths]."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(np.array(starts, np.int64) - (ends - lengths), lengths)


def _width(num_rows: int, widths: Sequence[int]) -> int:
    """Return the smallest width that holds the rows."""
    return next(width for width in widths if width >= num_rows)
