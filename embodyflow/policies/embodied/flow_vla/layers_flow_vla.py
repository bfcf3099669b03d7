"""Layers of language models and action experts, with the parameter names that Llama and Gemma share.

transformers' own layers do not serve, because the expert attends to keys and values of the language model's layer at
the same depth.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KeysAndValues = tuple[Tensor, Tensor]
"""Keys and values, each float [N, kv heads, k, head]."""

WAVELENGTH = 10_000.0
"""Approximate wavelength of the slowest pair of features; LeRobot ignores the language model's configuration here."""


def rotary_embedding(positions: Tensor, head_size: int) -> Tensor:
    """Return the rotary embeddings of positions int64 [N, k]: cosines and sines, float32 [2, N, 1, k, head / 2]."""
    half = head_size // 2
    periods = WAVELENGTH ** (torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angles = positions[:, None, :, None].float() / periods
    return torch.stack([angles.cos(), angles.sin()])


class SelfAttention(nn.Module):
    """Attention of embeddings to the context and to themselves.

    Args:
        config: Sizes, a ``LlamaConfig`` or ``GemmaConfig``.
        context_size: Features that keys and values are computed from.

    Attributes:
        is_cross_attention: Whether it attends to the context alone.
    """

    is_cross_attention = False

    def __init__(self, config: Any, context_size: int) -> None:
        super().__init__()
        self.head_size: int = config.head_dim
        heads, few = config.num_attention_heads * self.head_size, config.num_key_value_heads * self.head_size
        self.q_proj = nn.Linear(config.hidden_size, heads, bias=config.attention_bias)
        self.k_proj = nn.Linear(context_size, few, bias=config.attention_bias)
        self.v_proj = nn.Linear(context_size, few, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=config.attention_bias)

    def forward(
        self, hidden: Tensor, rotary: Tensor, mask: Tensor, context: KeysAndValues | None
    ) -> tuple[Tensor, ...]:
        """Return the outputs, float [N, k, D], with the keys and values; see :class:`Layer`."""
        query = _rotate(self._heads(self.q_proj(hidden)), rotary)
        keys, values = self.keys_and_values(hidden, rotary, context)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), keys, values

    def keys_and_values(self, hidden: Tensor, rotary: Tensor, context: KeysAndValues | None) -> KeysAndValues:
        """Return the context's keys and values, followed by those of ``hidden``."""
        keys, values = _rotate(self._heads(self.k_proj(hidden)), rotary), self._heads(self.v_proj(hidden))
        if context is None:
            return keys, values
        return torch.cat([context[0], keys], dim=2), torch.cat([context[1], values], dim=2)

    def _heads(self, features: Tensor) -> Tensor:
        # A copy even of a single head: FSDP warns about views that leave a layer.
        heads = features.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        return heads.clone(memory_format=torch.contiguous_format)


class Layer(nn.Module):
    """A layer of the language model or of the expert.

    Args:
        config: Sizes, a ``LlamaConfig`` or ``GemmaConfig``.
        attention: Attention of the layer.
        norm: The family's class of normalisations, built by size and ε.
        mlp: The family's class of MLPs, built by ``config``.
    """

    def __init__(self, config: Any, attention: SelfAttention, norm: type[nn.Module], mlp: type[nn.Module]) -> None:
        super().__init__()
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp(config)

    @property
    def after_keys_and_values(self) -> tuple[nn.Module, ...]:
        """Parts of the layer that keys and values do not depend on."""
        return self.self_attn.q_proj, self.self_attn.o_proj, self.post_attention_layernorm, self.mlp

    def forward(
        self, hidden: Tensor, rotary: Tensor, mask: Tensor, context: KeysAndValues | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Refine k embeddings; return them with the keys and values that they attended to.

        Args:
            hidden: Embeddings, float [N, k, D].
            rotary: Rotary embeddings of their positions, by :func:`rotary_embedding`.
            mask: Attention mask to all K keys, those of the context first, bool [N, 1, k, K].
            context: Keys and values of the context.
        """
        mixed, keys, values = self.self_attn(self.input_layernorm(hidden), rotary, mask, context)
        hidden = hidden + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), keys, values


def _rotate(heads: Tensor, rotary: Tensor) -> Tensor:
    """Rotate the pairs (i, i + half) of features, float [N, heads, k, head], in float32."""
    left, right = heads.float().chunk(2, dim=-1)
    cos, sin = rotary
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(heads.dtype)
