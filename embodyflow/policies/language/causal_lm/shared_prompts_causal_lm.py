"""Packing of rows in which siblings share one pass over their prompt, without any padding.

Group sampling gives G responses to a prompt. In a batch of G rows the prompt would pass through every layer G times
with the same result, because it attends to nothing after itself. Here each different prompt occurs once, as in Prefix
Grouper (Liu et al., 2025, arXiv:2506.05433). The contexts of an agent's row, which often begin alike, share their
beginnings in the same way. All tokens stand in one line. Attention alone works on sequences: it
gathers queries, keys and values into lines of whole sequences, and takes each token's output from one of its places.
"""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from embodyflow.policies.language.causal_lm.packing_causal_lm import AttentionLines, Packed, first_fit
from embodyflow.policies.language.causal_lm.sequences_causal_lm import sequences_of
from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, has_windows, seen_within

NAME = "embodyflow_shared_prompts"
"""Name in transformers' registry of attentions. Its registry of masks lacks the name, so models make no mask."""

MODEL_TYPES = {"gemma", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}
"""Architectures of transformers whose attention :func:`attend` computes, with and without windows."""


def use_in(model: Any) -> None:
    """Make a transformers model share prompts, if its attention is ``sdpa`` and of a known architecture."""
    config = model.config
    if config._attn_implementation == "sdpa" and config.model_type in MODEL_TYPES and has_windows(config):
        AttentionInterface.register(NAME, attend)
        model.set_attn_implementation(NAME)


def is_used_in(model: Any) -> bool:
    """Return True if :func:`pack_shared` may pack rows for the model."""
    return bool(model.config._attn_implementation == NAME)


def pack_shared(batch: TensorDict, device: str) -> Packed:
    """Pack language rows (:mod:`embodyflow.types`), each but its last token, into one line without padding.

    Without rows the line has one token: a sharded model's forward pass is a collective, so a rank without rows must
    take part.

    Args:
        batch: Language rows.
        device: Device of the result.
    """
    line = _Line()
    places_of: dict[bytes, np.ndarray] = {}
    laid: list[np.ndarray] = []
    before = [np.zeros((4, 0), np.int64)]
    for row, sequences in groupby(sequences_of(batch), key=lambda sequence: sequence.row):
        of_row: list[tuple[np.ndarray, np.ndarray]] = []  # inputs of the row's contexts so far, and their places
        for sequence in sequences:
            inputs, prompt = sequence.inputs, sequence.prompt
            if (key := prompt.tobytes()) not in places_of:
                places_of[key] = line.append(prompt, 0)
            known = places_of[key] if len(prompt) else _longest_beginning(inputs, of_row)
            places = np.concatenate([known, line.append(inputs[len(known) :], len(known))])
            of_row.append((inputs, places))
            laid.append(places)
            targets, steps = sequence.tokens[sequence.targets], sequence.steps[sequence.targets]
            where = places[max(len(prompt) - 1, 0) + np.arange(len(steps))]
            before.append(np.stack([where, np.full_like(steps, row), steps, targets]))
    if not laid:
        laid = [line.append(np.zeros(1, np.int64), 0)]
    where, rows, steps, targets = np.concatenate(before, axis=1)
    arrays = line.ids(), line.positions(), np.zeros_like(where), where, rows, steps, targets
    tensors = [torch.from_numpy(array).to(device) for array in arrays]
    return Packed(_attention_lines(laid, device), *tensors)


def _longest_beginning(inputs: np.ndarray, earlier: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the places of the longest beginning of a sequence that an earlier context of its row has too, int64."""
    best = np.zeros(0, np.int64)
    for tokens, places in earlier:
        length = min(len(tokens), len(inputs))
        different = np.flatnonzero(tokens[:length] != inputs[:length])
        shared = int(different[0]) if len(different) else length
        if shared > len(best):
            best = places[:shared]
    return best


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: Window = None,
    attention_lines: AttentionLines | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' ``sdpa`` attention within the sequences of ``attention_lines``.

    Args:
        module: Attention module of the model.
        query: Queries, [1, G·H, U, D].
        key: Keys, [1, H, U, D].
        value: Values, [1, H, U, D].
        attention_mask: Mask, for calls without lines.
        scaling: Factor of the scores.
        sliding_window: Window of the layer.
        attention_lines: Layout that the model was called with; without one, transformers' own attention is used.
        **arguments: Further arguments of transformers' attention.

    Returns:
        Outputs, [1, U, G·H, D], and no attention weights.
    """
    if attention_lines is None:
        if attention_mask is None:
            attention_mask = _mask_of_one_sequence(key, sliding_window)
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    mask = attention_lines.mask_within(sliding_window)
    queries, keys, values = (_gather(each, attention_lines.tokens) for each in (query, key, value))
    if mask is not None and query.device.type != "cpu":
        # On a GPU no fused kernel supports both a mask and shared heads; the unfused one keeps all scores.
        keys, values = (repeat_kv(each, queries.shape[1] // each.shape[1]) for each in (keys, values))
    mixed = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    outputs = mixed.transpose(1, 2).flatten(0, 1)  # [L·W, G·H, D]
    return embedding(attention_lines.places, outputs.flatten(1)).view(1, -1, *outputs.shape[1:]), None


def _mask_of_one_sequence(key: torch.Tensor, window: Window) -> torch.Tensor | None:
    """Return the mask of keys [n, H, t, D] and as many queries, bool [t, t]; ``None`` if it is causal."""
    length = key.shape[2]
    if window is None or window >= length:
        return None
    places = torch.arange(length, device=key.device)
    return seen_within(places, places[:, None], window)


def _gather(heads: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gather heads [1, H, U, D] into lines, [L, H, W, D]."""
    rows = heads[0].transpose(0, 1)
    # The gradient of an index is summed token by token; that of an embedding is the same sum, faster and ordered.
    return embedding(tokens, rows.flatten(1)).unflatten(-1, rows.shape[1:]).transpose(1, 2)


class _Line:
    """Tokens in one line."""

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._length = 0

    def append(self, ids: np.ndarray, first_position: int) -> np.ndarray:
        """Append tokens and return their places in the line, int64 of their shape."""
        start, self._length = self._length, self._length + len(ids)
        self._ids.append(ids)
        self._positions.append(np.arange(first_position, first_position + len(ids)))
        return np.arange(start, self._length)

    def ids(self) -> np.ndarray:
        return np.concatenate(self._ids)[None]

    def positions(self) -> np.ndarray:
        return np.concatenate(self._positions)[None]


def _attention_lines(sequences: list[np.ndarray], device: str) -> AttentionLines:
    """Lay sequences of token indices into lines as long as the longest sequence."""
    lines = first_fit([len(sequence) for sequence in sequences])
    num_tokens, width = 1 + max(int(sequence[-1]) for sequence in sequences), max(map(len, sequences))
    tokens = np.zeros((len(lines), width), np.int64)
    owner = np.full((len(lines), width), -1)
    for number, line in enumerate(lines):
        start = 0
        for index in line:
            end = start + len(sequences[index])
            tokens[number, start:end], owner[number, start:end] = sequences[index], index
            start = end
    places = np.zeros(num_tokens, np.int64)
    used = owner.flatten() >= 0
    places[tokens.flatten()[used]] = np.flatnonzero(used)  # a prompt's tokens get the last sibling's
    mask = None
    if any(len(line) > 1 for line in lines):
        # Padding attends to itself and earlier padding of its line; nothing attends to padding.
        mask = torch.from_numpy((owner[:, None, :] == owner[:, :, None]) & np.tri(width, dtype=bool))[:, None].to(
            device
        )
    return AttentionLines(torch.from_numpy(tokens).to(device), torch.from_numpy(places).to(device), mask)
