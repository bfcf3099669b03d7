"""The forward pass of rows of one token each, written out for models of the Llama family.

With a few dozen rows and a small model, launching many small operations dominates a step. This pass launches a third as
many as transformers: one product computes queries, keys and values, another the gate and up projections of the
feed-forward layer, and no modules are called in between.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from embodyflow.generation.transformers_engine.slot_cache import SlotCache, SlotLayer
from embodyflow.policies.language.causal_lm.windows_causal_lm import Window, windows_of
from embodyflow.policies.language.layers.onednn_linear import linear

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


class Angles(NamedTuple):
    """Rotary embeddings by halves (Su et al. 2021, arXiv:2104.09864) of n positions.

    Attributes:
        cos: Cosines [n, 1, D].
        sin: Sines [n, 1, D]; those of the first half are negated.
    """

    cos: Tensor
    sin: Tensor


class Decoder:
    """A transformers model's forward pass for rows of one token each.

    Weights of fused products become views of one tensor in the model too, so new weights that are written to the model
    in place take effect here.

    Args:
        model: Model that :func:`is_supported` accepts.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._norm, self._head = _Norm(model.model.norm), _weights_of(model.lm_head)
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
        biases = {window: _bias(mask, self._embedding.dtype) for window, mask in masks.items()}
        layers = zip(cache.layers, self._windows, strict=True)
        attentions = [_OfSlots(slots, biases[each]) for slots, each in layers]
        return self.logits(self.hidden(tokens, self.angles(positions), attentions))

    def angles(self, positions: Tensor) -> Angles:
        """Return the rotary embeddings of positions, int64 [n, 1]."""
        cos, sin = self._model.model.rotary_emb(self._embedding, positions)
        half = sin.shape[-1] // 2
        return Angles(cos, torch.cat((-sin[..., :half], sin[..., half:]), -1))

    def hidden(
        self, tokens: Tensor, angles: Angles, attentions: Sequence[Attention], linear: Linear = linear
    ) -> Tensor:
        """Return the hidden states [n, hidden size] of rows after the last normalisation.

        Args:
            tokens: Token of each row, int64 [n].
            angles: Rotary embeddings of the rows' positions.
            attentions: Attention of each layer.
            linear: Function that computes all linear layers.
        """
        hidden = embedding(tokens, self._embedding)
        for layer, attention in zip(self._layers, attentions, strict=True):
            hidden = layer(hidden, angles, attention, linear)
        return self._norm(hidden)

    def logits(self, hidden: Tensor, linear: Linear = linear) -> Tensor:
        """Return the logits [n, V] of hidden states [n, hidden size]."""
        return linear(hidden, *self._head)


class _Layer:
    """A decoder layer on rows [n, hidden size]."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._head_dim, self._scaling = attention.head_dim, attention.scaling
        self._num_heads = (config.num_attention_heads, config.num_key_value_heads)
        self._norm, self._second_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._norm_of_heads = _NormOfHeads(attention, *self._num_heads) if hasattr(attention, "q_norm") else None
        self._queries_keys_values = _fuse([attention.q_proj, attention.k_proj, attention.v_proj])
        self._gate_and_up = _fuse([mlp.gate_proj, mlp.up_proj])
        self._output, self._down = _weights_of(attention.o_proj), _weights_of(mlp.down_proj)

    def __call__(self, hidden: Tensor, angles: Angles, attention: Attention, linear: Linear) -> Tensor:
        heads = linear(self._norm(hidden), *self._queries_keys_values).view(len(hidden), -1, self._head_dim)
        hidden = linear(self._attend(heads, angles, attention), *self._output).add_(hidden)
        gate, up = linear(self._second_norm(hidden), *self._gate_and_up).chunk(2, -1)
        return linear(silu(gate).mul_(up), *self._down).add_(hidden)

    def _attend(self, heads: Tensor, angles: Angles, attend: Attention) -> Tensor:
        num_queries, num_keys = self._num_heads
        queries_keys = heads[:, : num_queries + num_keys]
        if self._norm_of_heads is not None:
            queries_keys = self._norm_of_heads(queries_keys)
        rolled = queries_keys.roll(self._head_dim // 2, -1)
        turned = (queries_keys * angles.cos).addcmul_(rolled, angles.sin)
        # Heads that share keys and values take the place of query tokens, so keys and values are not repeated.
        queries = turned[:, :num_queries].view(len(heads), num_keys, -1, self._head_dim)
        return attend(queries, turned[:, num_queries:], heads[:, -num_keys:], self._scaling).flatten(1)


class _Norm:
    """Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467), as a module of transformers does."""

    def __init__(self, norm: Any) -> None:
        self._weight, self._scale = norm.weight, _RootMeanSquare(norm.weight, norm.variance_epsilon)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._scale(hidden).mul_(self._weight)


class _NormOfHeads:
    """Normalisation of queries and keys [n, heads, D], which have two weights."""

    def __init__(self, attention: Any, num_queries: int, num_keys: int) -> None:
        norms = attention.q_norm, attention.k_norm
        self._weights = torch.stack([norm.weight.data for norm in norms])
        for norm, weight in zip(norms, self._weights, strict=True):
            norm.weight.data = weight
        self._scale = _RootMeanSquare(attention.q_norm.weight, attention.q_norm.variance_epsilon)
        self._kinds = torch.tensor([0] * num_queries + [1] * num_keys, device=self._weights.device)

    def __call__(self, heads: Tensor) -> Tensor:
        return self._scale(heads).mul_(self._weights.index_select(0, self._kinds))


class _RootMeanSquare:
    """Divides inputs [..., d] by the root of their mean square.

    Args:
        weight: Weight of the normalisation, of the inputs' precision and device.
        epsilon: Summand of the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._epsilon, self._summand = epsilon, torch.tensor(epsilon)
        self._is_written_out = weight.device.type == "cpu" and weight.dtype == torch.float32

    def __call__(self, inputs: Tensor) -> Tensor:
        if not self._is_written_out:
            return torch.rms_norm(inputs, inputs.shape[-1:], None, self._epsilon)
        # PyTorch's own is not fused on CPUs either, and converts scalars on the way: it takes half as long again.
        norm = vector_norm(inputs, dim=-1, keepdim=True)
        return inputs * torch.addcmul(self._summand, norm, norm, value=1 / inputs.shape[-1]).rsqrt_()


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


def _weights_of(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return layer.weight, layer.bias


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
