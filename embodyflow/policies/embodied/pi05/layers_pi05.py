"""Layers of π0.5's expert, whose normalisations depend on the time of the noisy actions.

A linear map of the condition gives scale, shift and gate of each normalisation: AdaLN (Peebles and Xie, 2023,
arXiv:2212.09748, section 3.2) with root mean squares. Parameters have the names of LeRobot's checkpoints.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaMLP

from embodyflow.policies.embodied.flow_vla.layers_flow_vla import KeysAndValues, SelfAttention


class AdaptiveNorm(nn.Module):
    """Normalisation of embeddings by their root mean square, scaled and shifted by a condition.

    At first the condition has no effect: the scale is 1, and every gate is open. The published model began with closed
    gates, through which adapters (LoRA) of random weights would learn next to nothing.

    Args:
        size: D, features of embeddings and condition.
        epsilon: ε.
    """

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.dense = nn.Linear(size, 3 * size)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        nn.init.ones_(self.dense.bias[2 * size :])
        self._epsilon = epsilon

    def forward(self, hidden: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised embeddings, float [N, k, D], and the gate of what is computed from them, [N, 1, D].

        Args:
            hidden: Embeddings, float [N, k, D].
            condition: Condition, float [N, D].
        """
        exact = hidden.float()
        normalised = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self._epsilon)
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, dim=-1)
        return (normalised * (1.0 + scale.float()) + shift.float()).to(hidden.dtype), gate


class AdaptiveLayer(nn.Module):
    """A layer of the expert.

    Args:
        config: Sizes, a ``GemmaConfig``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.input_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config, config.hidden_size)
        self.post_attention_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GemmaMLP(config)

    def forward(
        self, hidden: Tensor, condition: Tensor, rotary: Tensor, mask: Tensor, context: KeysAndValues
    ) -> Tensor:
        """Refine embeddings, float [N, k, D]; see :meth:`.layers_flow_vla.Layer.forward`.

        Args:
            hidden: Embeddings, see there.
            condition: Condition of the normalisations, float [N, D].
            rotary: Rotary embeddings, see there.
            mask: Attention mask, see there.
            context: Keys and values of the context.
        """
        normalised, gate = self.input_layernorm(hidden, condition)
        mixed, _, _ = self.self_attn(normalised, rotary, mask, context)
        hidden = hidden + gate * mixed
        normalised, gate = self.post_attention_layernorm(hidden, condition)
        refined: Tensor = hidden + gate * self.mlp(normalised)
        return refined
