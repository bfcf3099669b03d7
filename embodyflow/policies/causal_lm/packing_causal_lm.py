"""Rows of different lengths as a batch without much padding.

Sequences are laid one after the other in lines as long as the longest of them. Their positions begin anew, which is how
transformers knows that they must not see each other: its attention masks become block-diagonal. Where attention has no
mask (``flash_attention_2``) it heeds positions in a batch of one line alone, so that all are laid in one, which costs
nothing there: attention is computed sequence by sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict


@dataclass(frozen=True)
class AttentionLines:
    """Where attention finds the sequences of U tokens that stand in one line: in L lines of W places.

    Attributes:
        tokens: int64 ``[L, W]``: which token is at a place.
        places: int64 ``[U]``: at which of the L·W places a token's output is taken.
        mask: bool ``[L, 1, W, W]``: what sees what; ``None`` for causal lines of one sequence each.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Packed:
    """Rows packed into B lines of S tokens.

    Attributes:
        attention_lines: where the one line (B = 1) is not what attention sees (:mod:`.shared_prompts_causal_lm`).
        input_ids, position_ids: int64 ``[B, S]``.
        lines, positions: int64 ``[K]``: where the token before each of the K response tokens is.
        rows, steps: int64 ``[K]``: whose response token it is, and which.
        targets: int64 ``[K]``, the response tokens.
    """

    attention_lines: AttentionLines | None
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    lines: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    steps: torch.Tensor
    targets: torch.Tensor


def pack_rows(batch: TensorDict, device: str, attention: str) -> Packed:
    """Pack the prompts and responses of language rows (:mod:`embodyflow.types`), each but its last token.

    Without any rows there is one line of one token: a sharded model's forward pass is a collective, and a rank without
    rows takes part.

    Args:
        batch: language rows.
        device: of the result.
        attention: which implementation of transformers the model has.
    """
    prompts, responses = batch["prompt_tokens"].cpu().numpy(), batch["action_tokens"][..., 0].cpu().numpy()
    num_prompt, num_response = batch["prompt_length"].cpu().numpy(), batch["response_length"].cpu().numpy()
    lengths = num_prompt + np.maximum(num_response - 1, 0)  # nothing comes after a response's last token
    if attention == "flash_attention_2" and len(lengths):
        lines, width = [list(range(len(lengths)))], int(lengths.sum())
    else:
        lines, width = first_fit(lengths.tolist()), int(lengths.max(initial=1))
    ids, positions = np.zeros((2, max(len(lines), 1), width), np.int64)
    before: list[np.ndarray] = [np.zeros((4, 0), np.int64)]
    for number, line in enumerate(lines):
        start = 0
        for row in line:
            middle, end = start + num_prompt[row], start + lengths[row]
            ids[number, start:middle] = prompts[row, : num_prompt[row]]
            ids[number, middle:end] = responses[row, : end - middle]
            positions[number, start:end] = np.arange(lengths[row])
            steps = np.arange(num_response[row])
            before.append(np.stack([np.full_like(steps, number), middle - 1 + steps, np.full_like(steps, row), steps]))
            start = end
        # Padding goes on where the last sequence ends, and is not seen by it: lines of one sequence each need no mask
        # but the causal one, which attention has a faster way for.
        positions[number, start:] = positions[number, start - 1] + 1 + np.arange(width - start)
    where = np.concatenate(before, axis=1)
    targets = responses[where[2], where[3]]
    tensors = [torch.from_numpy(array).to(device) for array in (ids, positions, *where, targets)]
    return Packed(None, *tensors)


def first_fit(lengths: Sequence[int]) -> list[list[int]]:
    """Return which sequences share a line, longest first, each where it fits first.

    A line is as long as the longest sequence: longer ones would cost more attention, whose masks are dense.
    """
    lines: list[list[int]] = []
    room: dict[int, int] = {}  # of the lines that still have place for the shortest sequence
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
