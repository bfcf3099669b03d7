"""The forward pass of one token per row, written out for models of the Llama family.

With a few dozen rows and a small model, a step costs what its many small operations cost to start. transformers starts
three times as many: queries, keys and values are one product here, so are the two halves of a feed-forward layer, and
there is no module between.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from embodyflow.generation.slot_cache import SlotCache
from embodyflow.policies.onednn_linear import linear

MODELS = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Classes of transformers whose layers are those of :class:`Decoder`."""


class Decoder:
    """Computes what a model does.

    The weights of joined products become views of one tensor, in the model too: whoever writes to the model's weights
    writes to these.

    Args:
        model: one that :func:`is_known`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = [_Layer(layer, model.config) for layer in model.model.layers]

    def __call__(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """Return the logits [n, V] after the next token of each of the first n slots.

        Args:
            tokens: int64 [n].
            positions: int64 [n, 1] of them.
            mask: of the attention, bool [n, 1, 1, c], as :meth:`SlotCache.expect` returned it for this pass.
            cache: gets the tokens' keys and values.
        """
        body = self._model.model
        hidden = embedding(tokens, body.embed_tokens.weight)
        cos, sin = body.rotary_emb(hidden, positions)  # [n, 1, D]
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        bias = torch.zeros(mask.shape, dtype=hidden.dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
        for layer, slots in zip(self._layers, cache.layers, strict=True):
            hidden = layer(hidden, cos, sin, bias, slots)
        hidden = _normalised(hidden, body.norm)
        return linear(hidden, self._model.lm_head.weight, self._model.lm_head.bias)


class _Layer:
    """A decoder layer over rows [n, hidden size]."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._layer = layer
        self._head_dim = attention.head_dim
        self._num_heads = config.num_attention_heads
        self._num_shared = config.num_key_value_heads
        self._queries_keys_values = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_and_up = _joined([mlp.gate_proj, mlp.up_proj])

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, slots: Any) -> Tensor:
        layer = self._layer
        attended = self._attend(_normalised(hidden, layer.input_layernorm), cos, sin, bias, slots)
        projection = layer.self_attn.o_proj
        hidden = hidden + linear(attended, projection.weight, projection.bias)
        gate, up = linear(_normalised(hidden, layer.post_attention_layernorm), *self._gate_and_up).chunk(2, -1)
        down = layer.mlp.down_proj
        return hidden + linear(silu(gate).mul_(up), down.weight, down.bias)

    def _attend(self, inputs: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, slots: Any) -> Tensor:
        num_rows, turned = len(inputs), self._num_heads + self._num_shared
        heads = linear(inputs, *self._queries_keys_values).view(num_rows, -1, self._head_dim)
        queries_keys = heads[:, :turned]
        attention = self._layer.self_attn
        if hasattr(attention, "q_norm"):
            scale = torch.cat(
                [
                    attention.q_norm.weight.expand(self._num_heads, -1),
                    attention.k_norm.weight.expand(self._num_shared, -1),
                ]
            )
            epsilon = attention.q_norm.variance_epsilon
            queries_keys = torch.rms_norm(queries_keys, (self._head_dim,), None, epsilon).mul_(scale)
        # The rotation of halves (Su et al. 2021, arXiv:2104.09864): the sine of the first half is negative already.
        queries_keys = (queries_keys * cos).addcmul_(queries_keys.roll(self._head_dim // 2, -1), sin)
        queries, new_keys = queries_keys.split([self._num_heads, self._num_shared], 1)
        keys, values = slots.update(new_keys[:, :, None], heads[:, turned:, None])
        # Heads that share keys and values stand where else a sequence's tokens do: nothing is repeated.
        groups = queries.view(num_rows, self._num_shared, -1, self._head_dim)
        return _attended(groups, keys, values, bias, attention.scaling).reshape(num_rows, -1)


def is_known(model: Any) -> bool:
    """Whether a transformers model can be computed by :class:`Decoder`."""
    config = model.config
    return (
        type(model).__name__ in MODELS
        and config.hidden_act == "silu"
        and config._attn_implementation in ("sdpa", "embodyflow_sdpa")
    )


def _normalised(hidden: Tensor, norm: Any) -> Tensor:
    return torch.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _attended(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return what single queries [n, H, G, D] find in keys and values [n, H, c, D]."""
    if queries.device.type != "cpu":
        return scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)
    # With a query or two in place of a sequence of them, the CPU's fused kernel is slower than its parts.
    scores = torch.matmul(queries * scale, keys.transpose(-1, -2)).add_(bias)
    return torch.matmul(scores.softmax(-1), values)


def _joined(layers: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of layers of the same inputs as one, of which theirs become views."""
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
