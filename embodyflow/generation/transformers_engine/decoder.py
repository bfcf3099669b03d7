"""The forward pass of rows of one token each, written out for models of the Llama family.

With a few dozen rows and a small model, launching many small operations dominates a step. This pass launches a third as
many as transformers: one product computes queries, keys and values, another the gate and up projections of the
feed-forward layer, and no modules are called in between.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from embodyflow.generation.transformers_engine.slot_cache import SlotCache, SlotLayer
from embodyflow.policies.causal_lm.windows_causal_lm import Window, windows_of
from embodyflow.policies.onednn_linear import linear

MODELS = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Model classes of transformers that :class:`Decoder` supports."""


class Attention(Protocol):
    """Attention of one layer in one pass. It stores the rows' keys and values in a cache of its own."""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Return the attention outputs of the rows, [n, H, G, D].

        Args:
            queries: Queries [n, H, G, D]; the G heads of a group share keys and values.
            keys: New keys [n, H, D].
            values: New values [n, H, D].
            scale: Factor of the scores.
        """


class Linear(Protocol):
    """A linear layer as a function."""

    def __call__(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``inputs @ weight.T + bias``."""


class Decoder:
    """A transformers model's forward pass for rows of one token each.

    Weights of fused products become views of one tensor in the model too, so new weights that are written to the model
    in place take effect here.

    Args:
        model: Model that :func:`is_supported` accepts.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = [_Layer(layer, model.config) for layer in model.model.layers]
        self._windows = windows_of(model.config)

    def __call__(self, tokens: Tensor, positions: Tensor, masks: Mapping[Window, Tensor], cache: SlotCache) -> Tensor:
        """Return the logits [n, V] after the next token of each of the first n slots.

        Args:
            tokens: Tokens, int64 [n].
            positions: Positions of the tokens, int64 [n, 1].
            masks: Attention masks, bool [n, 1, 1, c], from :meth:`SlotCache.prepare_step` for this pass.
            cache: Cache that receives the tokens' keys and values.
        """
        dtype = self._model.model.embed_tokens.weight.dtype
        biases = {window: _bias(mask, dtype) for window, mask in masks.items()}
        layers = zip(cache.layers, self._windows, strict=True)
        return self.logits(self.hidden(tokens, positions, [_OfSlots(slots, biases[each]) for slots, each in layers]))

    def hidden(
        self, tokens: Tensor, positions: Tensor, attentions: Sequence[Attention], linear: Linear = linear
    ) -> Tensor:
        """Return the hidden states [n, hidden size] of rows after the last normalisation.

        Args:
            tokens: Token of each row, int64 [n].
            positions: Positions of the tokens, int64 [n, 1].
            attentions: Attention of each layer.
            linear: Function that computes all linear layers.
        """
        body = self._model.model
        hidden = embedding(tokens, body.embed_tokens.weight)
        cos, sin = body.rotary_emb(hidden, positions)  # [n, 1, D]
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        for layer, attention in zip(self._layers, attentions, strict=True):
            hidden = layer(hidden, cos, sin, attention, linear)
        return _normalize(hidden, body.norm)

    def logits(self, hidden: Tensor, linear: Linear = linear) -> Tensor:
        """Return the logits [n, V] of hidden states [n, hidden size]."""
        return linear(hidden, self._model.lm_head.weight, self._model.lm_head.bias)


class _Layer:
    """A decoder layer on rows [n, hidden size]."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._layer = layer
        self._head_dim = attention.head_dim
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._queries_keys_values = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_and_up = _fuse([mlp.gate_proj, mlp.up_proj])

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention, linear: Linear) -> Tensor:
        layer = self._layer
        heads = linear(_normalize(hidden, layer.input_layernorm), *self._queries_keys_values)
        attended = self._attend(heads.view(len(hidden), -1, self._head_dim), cos, sin, attention)
        projection = layer.self_attn.o_proj
        hidden = hidden + linear(attended, projection.weight, projection.bias)
        gate, up = linear(_normalize(hidden, layer.post_attention_layernorm), *self._gate_and_up).chunk(2, -1)
        down = layer.mlp.down_proj
        return hidden + linear(silu(gate).mul_(up), down.weight, down.bias)

    def _attend(self, heads: Tensor, cos: Tensor, sin: Tensor, attend: Attention) -> Tensor:
        num_rows, num_rotated = len(heads), self._num_heads + self._num_kv_heads
        queries_keys = heads[:, :num_rotated]
        attention = self._layer.self_attn
        if hasattr(attention, "q_norm"):
            scale = torch.cat(
                [
                    attention.q_norm.weight.expand(self._num_heads, -1),
                    attention.k_norm.weight.expand(self._num_kv_heads, -1),
                ]
            )
            epsilon = attention.q_norm.variance_epsilon
            queries_keys = torch.rms_norm(queries_keys, (self._head_dim,), None, epsilon).mul_(scale)
        # Rotary embedding by halves (Su et al. 2021, arXiv:2104.09864); the first half of ``sin`` is already negated.
        queries_keys = (queries_keys * cos).addcmul_(queries_keys.roll(self._head_dim // 2, -1), sin)
        queries, new_keys = queries_keys.split([self._num_heads, self._num_kv_heads], 1)
        # Heads that share keys and values take the place of query tokens, so keys and values are not repeated.
        groups = queries.view(num_rows, self._num_kv_heads, -1, self._head_dim)
        return attend(groups, new_keys, heads[:, num_rotated:], attention.scaling).reshape(num_rows, -1)


class _OfSlots:
    """Implements :class:`Attention`: row i attends to slot i of a cache.

    Args:
        slots: Slots of the layer.
        bias: Bias [n, 1, 1, c] of the scores, 0 or minus infinity.
    """

    def __init__(self, slots: SlotLayer, bias: Tensor) -> None:
        self._slots, self._bias = slots, bias

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        return _attend_to(queries, *self._slots.update(keys[:, :, None], values[:, :, None]), self._bias, scale)


def is_supported(model: Any) -> bool:
    """Return True if :class:`Decoder` can compute this transformers model."""
    config = model.config
    return (
        type(model).__name__ in MODELS
        and config.hidden_act == "silu"
        and config._attn_implementation in ("sdpa", "embodyflow_sdpa")
    )


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _normalize(hidden: Tensor, norm: Any) -> Tensor:
    return torch.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _attend_to(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return the attention outputs [n, H, G, D] of single-token queries [n, H, G, D] on a cache [n, H, c, D]."""
    if queries.device.type != "cpu":
        return scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)
    # For one or two queries per head, the CPU's fused kernel is slower than separate operations.
    scores = torch.matmul(queries * scale, keys.transpose(-1, -2)).add_(bias)
    return torch.matmul(scores.softmax(-1), values)


def _fuse(layers: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Concatenate weights and biases of layers with the same inputs, and make the layers' own into views of these."""
    weight = torch.cat([layer.weight.data for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
    start = 0
    for layer in layers:
        end = start + layer.out_features
        layer.weight.data = weight[start:end]
        if bias is not None:
            layer.bias.data = bias[start:end]
        start = end
    return weight, bias
