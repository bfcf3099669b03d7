"""The head of a language model in pieces, for vocabularies of a hundred thousand tokens and more.

With 262,144 tokens, the logits of 8,192 places take 8 GiB, and their gradient as much again. Here the head computes a
piece of fixed size at a time and keeps log-probs and entropies alone; the backward pass computes each piece again. A
pass with fewer logits than a piece computes them at once, as transformers does.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from embodyflow.policies.language.causal_lm.chosen_causal_lm import choose, choose_by_head
from embodyflow.policies.language.layers.onednn_linear import OneDNNLinear

PIECE = 2**25
"""Logits of one piece, 128 MiB in float32: 128 places with Gemma's vocabulary."""

MODEL_TYPES = {
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
}
"""Architectures of transformers whose logits :func:`logits_of` computes. Others may scale them."""


def is_for_pieces(model: Any, num_tokens: int) -> bool:
    """Return True if a transformers model should compute its head in pieces in a pass over so many tokens."""
    config = model.config
    return config.model_type in MODEL_TYPES and num_tokens * config.vocab_size > PIECE


def choose_in_pieces(
    model: Any, inputs: Mapping[str, Any], places: tuple[Tensor, Tensor], targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log-probs of the targets and entropies, both float32 ``[K]``; the logits never exist as a whole.

    Args:
        model: Model of one of :data:`MODEL_TYPES`.
        inputs: Inputs of the model.
        places: Line and place of the token before each target, int64 ``[K]`` each, K > 0.
        targets: Chosen tokens, int64 ``[K]``.
        temperature: Divisor of the logits.
    """

    def forward(**arguments: Any) -> tuple[Tensor, Tensor]:
        hidden = model.base_model(**arguments).last_hidden_state[places]
        size = max(PIECE // model.config.vocab_size, 1)
        if (weight := _plain_weight(model)) is not None and type(hidden) is Tensor and hidden.dtype == weight.dtype:
            return choose_by_head(hidden, weight, targets, temperature, size)
        pieces = [
            checkpoint(_choose, model, *piece, temperature, use_reentrant=False, preserve_rng_state=False)
            for piece in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        log_probs, entropies = zip(*pieces, strict=True)
        return torch.cat(log_probs), torch.cat(entropies)

    # A sharded model gathers its weights in hooks around its forward pass, so the head must be computed within it.
    with _forward_replaced(model, forward):
        log_probs, entropies = model(**inputs)
    return log_probs, entropies


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """Return a model's logits ``[K, V]`` at hidden states ``[K, H]``, with the cap that Gemma 2 has."""
    logits: Tensor = model.get_output_embeddings()(hidden)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _plain_weight(model: Any) -> Tensor | None:
    """Return the weight of a head that only multiplies by it; ``None`` for others, such as one with adapters."""
    head, cap = model.get_output_embeddings(), getattr(model.config, "final_logit_softcapping", None)
    if type(head) not in (nn.Linear, OneDNNLinear) or head.bias is not None or cap is not None:
        return None
    weight = head.weight
    return weight if type(weight) in (Tensor, nn.Parameter) else None  # others are spread over processes


def _choose(model: Any, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    return choose(logits_of(model, hidden).float(), targets, temperature)


@contextmanager
def _forward_replaced(model: Any, forward: Callable[..., Any]) -> Iterator[None]:
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
