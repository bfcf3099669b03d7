"""Layers of language models and action experts, by the parameters' names that Llama and Gemma share.

They are written here, and not taken from transformers, because the expert attends to what the language model's layer of
the same depth has to say.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KeysAndValues = tuple[Tensor, Tensor]
"""Two of float [N, kv heads, k, head]."""

WAVELENGTH = 10_000.0
"""Of the slowest turning pair of features, nearly: in LeRobot whatever the language model's configuration says."""


def turn_by(positions: Tensor, head_size: int) -> Tensor:
    """Return cosines and sines of rotary embeddings, float32 [2, N, 1, k, head / 2], of positions int64 [N, k]."""
    half = head_size // 2
    periods = WAVELENGTH ** (torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angles = positions[:, None, :, None].float() / periods
    return torch.stack([angles.cos(), angles.sin()])


class SelfAttention(nn.Module):
    """Attends to what came before and to itself.

    Args:
        config: sizes, a ``LlamaConfig`` or ``GemmaConfig``.
        context_size: features of what keys and values are made from.

    Attributes:
        crosses: it attends to what came before alone.
    """

    crosses = False

    def __init__(self, config: Any, context_size: int) -> None:
        super().__init__()
        self.head_size: int = config.head_dim
        heads, few = config.num_attention_heads * self.head_size, config.num_key_value_heads * self.head_size
        self.q_proj = nn.Linear(config.hidden_size, heads, bias=config.attention_bias)
        self.k_proj = nn.Linear(context_size, few, bias=config.attention_bias)
        self.v_proj = nn.Linear(context_size, few, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=config.attention_bias)

    def forward(self, hidden: Tensor, turn: Tensor, mask: Tensor, before: KeysAndValues | None) -> tuple[Tensor, ...]:
        """Return what was attended to, float [N, k, D], and with which keys and values; see :class:`Layer`."""
        query = _turned(self._heads(self.q_proj(hidden)), turn)
        keys, values = self.keys_and_values(hidden, turn, before)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), keys, values

    def keys_and_values(self, hidden: Tensor, turn: Tensor, before: KeysAndValues | None) -> KeysAndValues:
        """Return those of what came before, and then its own."""
        keys, values = _turned(self._heads(self.k_proj(hidden)), turn), self._heads(self.v_proj(hidden))
        if before is None:
            return keys, values
        return torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)

    def _heads(self, features: Tensor) -> Tensor:
        # A copy, also of a single head, since FSDP warns of views that leave a layer.
        heads = features.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        return heads.clone(memory_format=torch.contiguous_format)


class Layer(nn.Module):
    """A layer of the language model or of the expert.

    Args:
        config: sizes, a ``LlamaConfig`` or ``GemmaConfig``.
        attention: of the layer.
        norm: the family's class of normalisations, built by size and ε.
        mlp: the family's class of MLPs, built by ``config``.
    """

    def __init__(self, config: Any, attention: SelfAttention, norm: type[nn.Module], mlp: type[nn.Module]) -> None:
        super().__init__()
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp(config)

    @property
    def after_keys_and_values(self) -> tuple[nn.Module, ...]:
        """Its parts that keys and values are made without."""
        return self.self_attn.q_proj, self.self_attn.o_proj, self.post_attention_layernorm, self.mlp

    def forward(
        self, hidden: Tensor, turn: Tensor, mask: Tensor, before: KeysAndValues | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Refine k embeddings; return them with the keys and values that they attended to.

        Args:
            hidden: float [N, k, D].
            turn: by :func:`turn_by`, of their positions.
            mask: bool [N, 1, k, K], who attends to whom of the K there are, what came before first.
            before: keys and values of what came before.
        """
        mixed, keys, values = self.self_attn(self.input_layernorm(hidden), turn, mask, before)
        hidden = hidden + mixed
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), keys, values


def _turned(heads: Tensor, turn: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of features, float [N, heads, k, head], in float32."""
    left, right = heads.float().chunk(2, dim=-1)
    cos, sin = turn
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(heads.dtype)
