"""Packing of rows of different lengths into a batch with little padding.

Sequences follow each other in lines as long as the longest sequence. The positions of each begin at 0, which makes
transformers' attention masks block-diagonal, so sequences do not attend to each other. Attention without a mask
(``flash_attention_2``) respects positions only in a batch of one line, so all sequences go into one. That costs nothing
there: it computes attention sequence by sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.language.causal_lm.sequences_causal_lm import sequences_of
from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, seen_within

BLIND_TO_POSITIONS = {"afmoe", "biogpt", "falcon", "gpt_oss", "granitemoehybrid", "opt", "xglm"}
"""Architectures of transformers whose masks do not depend on positions; a line holds one of their sequences."""


@dataclass(frozen=True)
class AttentionLines:
    """Layout of sequences for attention: L lines of W places, for U tokens that other layers see in one line.

    Attributes:
        tokens: Index of the token at each place, int64 ``[L, W]``.
        places: Index of the place, among L·W, that each token's output is taken from, int64 ``[U]``.
        mask: Attention mask, bool ``[L, 1, W, W]``; ``None`` for causal lines of one sequence each.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor | None
    _local_masks: dict[int, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    def mask_within(self, window: Window) -> torch.Tensor | None:
        """Return the mask of layers with a window, bool ``[L, 1, W, W]`` or ``[1, 1, W, W]``; ``None`` if causal.

        Sequences lie in one piece, so the distance of two places is that of their tokens' positions.
        """
        width = self.tokens.shape[1]
        if window is None or window >= width:
            return self.mask
        if window not in self._local_masks:
            places = torch.arange(width, device=self.tokens.device)
            near = seen_within(places, places[:, None], window)[None, None]
            self._local_masks[window] = near if self.mask is None else near & self.mask
        return self._local_masks[window]


@dataclass(frozen=True)
class Packed:
    """Rows packed into B lines of S tokens.

    Attributes:
        attention_lines: Layout for attention, if it differs from the one line (:mod:`.shared_prompts_causal_lm`).
        input_ids, position_ids: Tokens and their positions, int64 ``[B, S]``.
        lines, positions: Line and place of the token before each of the K response tokens, int64 ``[K]``.
        rows, steps: Row of each response token and its place in the response, int64 ``[K]``.
        targets: Response tokens, int64 ``[K]``, but the first one of an agent's further context.
    """

    attention_lines: AttentionLines | None
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    lines: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    steps: torch.Tensor
    targets: torch.Tensor


def pack_rows(batch: TensorDict, device: str, attention: str, model_type: str = "") -> Packed:
    """Pack the sequences of language rows (:mod:`embodyflow.types`), each but its last token.

    Without rows the result is one line of one token: a sharded model's forward pass is a collective, so a rank without
    rows must take part.

    Args:
        batch: Language rows.
        device: Device of the result.
        attention: Name of the model's attention in transformers.
        model_type: Architecture of the model in transformers.
    """
    sequences = sequences_of(batch)
    inputs = [sequence.inputs for sequence in sequences]
    lengths = [len(each) for each in inputs]
    width = max(lengths, default=1)
    if attention == "flash_attention_2" and lengths:
        lines, width = [list(range(len(lengths)))], sum(lengths)
    elif model_type in BLIND_TO_POSITIONS:
        lines = [[index] for index in range(len(lengths))]
    else:
        lines = first_fit(lengths)
    ids, positions = np.zeros((2, max(len(lines), 1), width), np.int64)
    before: list[np.ndarray] = [np.zeros((5, 0), np.int64)]
    for number, line in enumerate(lines):
        start = 0
        for index in line:
            sequence, end = sequences[index], start + lengths[index]
            ids[number, start:end] = inputs[index]
            positions[number, start:end] = np.arange(lengths[index])
            targets, steps = sequence.tokens[sequence.targets], sequence.steps[sequence.targets]
            places = start + max(len(sequence.prompt) - 1, 0) + np.arange(len(steps))
            every = np.full_like(steps, number), np.full_like(steps, sequence.row)
            before.append(np.stack([every[0], places, every[1], steps, targets]))
            start = end
        # Padding goes on where the last sequence ends, and is not seen by it: lines of one sequence each need no mask
        # but the causal one, which attention has a faster way for.
        positions[number, start:] = positions[number, start - 1] + 1 + np.arange(width - start)
    where = np.concatenate(before, axis=1)
    return Packed(None, *(torch.from_numpy(array).to(device) for array in (ids, positions, *where)))


def first_fit(lengths: Sequence[int]) -> list[list[int]]:
    """Assign sequences to lines, longest first, each to the first line with room; return the sequences of each line.

    A line is as long as the longest sequence. Longer lines would cost more attention, because masks are dense.
    """
    lines: list[list[int]] = []
    room: dict[int, int] = {}  # free places of lines that can hold the shortest sequence
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        line = next((line for line, free in room.items() if free >= lengths[index]), len(lines))
        if line == len(lines):
            lines.append([])
            room[line] = longest
        lines[line].append(index)
        room[line] -= lengths[index]
        if room[line] < shortest:
            del room[line]
    return lines
