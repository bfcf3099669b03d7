"""Attention of single tokens without copies of the cache.

Where several query heads share a key-value head (grouped-query attention, Ainslie et al. 2023), transformers' ``sdpa``
repeats the whole cache for each of them at every step. With one query token per row the heads of a group can stand
where else a sequence's tokens do.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "embodyflow_sdpa"


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' ``sdpa``.

    Args:
        module: the model's attention.
        query: [n, G·H, t, D].
        key: [n, H, c, D].
        value: [n, H, c, D].
        attention_mask: [n, 1, t, c] or ``None`` for a causal one.
        scaling: of the scores.
        **arguments: what else models say.

    Returns:
        [n, t, G·H, D].
    """
    num_rows, num_heads, length, features = query.shape
    if length > 1 or arguments.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    groups = query.view(num_rows, key.shape[1], num_heads // key.shape[1], features)
    output = scaled_dot_product_attention(groups, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(num_rows, 1, num_heads, -1), None


def use_in(model: Any) -> None:
    """Let a transformers model that would use ``sdpa`` use this instead."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
