"""The check that a row of a pass has the same bits whatever is beside it.

Kernels choose the order of their sums by shapes, not by values. The check therefore computes random sequences in passes
of every width, cut and placed at random. Widths that agree in every bit sum in the same order, and may be mixed
(He et al., Defeating Nondeterminism in LLM Inference, Thinking Machines 2025, call such results batch-invariant).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from embodyflow.generation.conversations.places import BLOCK
from embodyflow.generation.conversations.row_passes import Chunk, RowPasses
from embodyflow.seeding import derive_rng

LENGTHS = (BLOCK + 5, 21, 6, 3)
"""Lengths of the sequences in tokens; one of them takes more than one block."""

BuildPasses = Callable[[Sequence[int]], RowPasses]
"""Builds passes of given widths with an empty cache of as many slots as there are sequences."""


def agreeing_widths(build: BuildPasses, widths: Sequence[int], vocab_size: int, max_length: int) -> tuple[int, ...]:
    """Return the widths that agree in every bit with the widest one that agrees with itself; none may.

    Args:
        build: Builds passes.
        widths: Widths to check, in ascending order.
        vocab_size: Number of tokens.
        max_length: Most tokens of a sequence.
    """
    lengths = [min(length, max_length) for length in LENGTHS]
    results = {width: _logits(build((width,)), vocab_size, lengths, width) for width in widths}
    for number, width in reversed(list(enumerate(widths, 1))):
        if torch.equal(results[width], _logits(build((width,)), vocab_size, lengths, width + 1)):
            return tuple(each for each in widths[:number] if torch.equal(results[each], results[width]))
    return ()


def _logits(passes: RowPasses, vocab_size: int, lengths: Sequence[int], seed: int) -> Tensor:
    """Return the logits [n, V + 1] of all n tokens of the sequences, computed in passes drawn from the seed.

    The last column is their logsumexp, which log-probs need.
    """
    rng = derive_rng(0, "invariance", "passes", seed)
    draws = derive_rng(0, "invariance", "tokens").integers(vocab_size, size=(len(lengths), max(lengths)))
    sequences = [row[:length].tolist() for row, length in zip(draws, lengths, strict=True)]
    ends, logits = [0] * len(lengths), [list[Tensor]() for _ in lengths]
    while chunks := _draw_chunks(sequences, ends, passes.max_rows, rng):
        of_rows = passes.logits(passes.hidden(chunks))
        of_rows = torch.cat([of_rows, of_rows.logsumexp(-1, keepdim=True)], -1)
        for chunk, part in zip(chunks, of_rows.split([len(chunk.tokens) for chunk in chunks]), strict=True):
            logits[chunk.slot].append(part)
            ends[chunk.slot] += len(chunk.tokens)
    return torch.cat([part for parts in logits for part in parts])


def _draw_chunks(
    sequences: Sequence[list[int]], ends: Sequence[int], room: int, rng: np.random.Generator
) -> list[Chunk]:
    """Return the next chunks of some sequences, in random order; empty if nothing is left."""
    chunks: list[Chunk] = []
    for slot in rng.permutation(len(sequences)).tolist():
        left = min(room, len(sequences[slot]) - ends[slot])
        if left:
            length = int(rng.integers(max(left // 2, 1), left + 1))
            chunks.append(Chunk(slot, ends[slot], sequences[slot][ends[slot] : ends[slot] + length]))
            room -= length
    return chunks
