"""Attention of transformers models in steps of single tokens, which does not copy the key-value cache.

With grouped-query attention (Ainslie et al. 2023), several query heads share a key-value head, and transformers'
``sdpa`` repeats the whole cache for each of them at every step. With one query token per row, the heads of a group can
take the place of the query tokens instead.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, windows_of

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
    """Compute attention with the interface of transformers' ``sdpa``.

    Args:
        module: Attention module of the model.
        query: Queries [n, G·H, t, D].
        key: Keys [n, H, c, D].
        value: Values [n, H, c, D].
        attention_mask: Mask [n, 1, t, c], or ``None`` for a causal mask.
        scaling: Factor of the scores.
        **arguments: Further arguments that models pass on.

    Returns:
        Attention outputs [n, t, G·H, D], and ``None`` for the attention weights.
    """
    num_rows, num_heads, length, features = query.shape
    if length > 1 or arguments.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **arguments)
    groups = query.view(num_rows, key.shape[1], num_heads // key.shape[1], features)
    output = scaled_dot_product_attention(groups, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(num_rows, 1, num_heads, -1), None


def implementation_for(config: Any) -> str | None:
    """Return the attention that a model needs, by its name in transformers; ``None`` leaves it to transformers.

    transformers' ``sdpa`` leaves out the cap on scores that Gemma 2 has.
    """
    return "eager" if getattr(config, "attn_logit_softcapping", None) else None


def masks_for(model: Any, masks: Mapping[Window, torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return masks as the argument ``attention_mask`` of a transformers model.

    Args:
        model: Model.
        masks: Mask of each window that a layer has, bool [n, 1, t, c].

    Returns:
        The only mask, or a mask by kind of layer.
    """
    if model.config._attn_implementation == "eager":
        masks = {window: _additive(mask, model.dtype) for window, mask in masks.items()}
    if len(masks) == 1:
        return next(iter(masks.values()))
    kinds = zip(model.config.layer_types, windows_of(model.config), strict=True)
    return {kind: masks[window] for kind, window in kinds}


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    hidden = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, hidden)


def use_in(model: Any) -> None:
    """Replace ``sdpa`` by this attention in a transformers model; other implementations stay."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
