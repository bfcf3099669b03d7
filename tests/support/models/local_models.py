"""Small language models whose layers attend to a window, one of each architecture that has such layers."""

from pathlib import Path
from typing import Any

import torch
from language_models import VOCAB
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = 5
"""Positions that a local layer attends to."""

MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
QWEN = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}
MODELS: dict[str, dict[str, Any]] = {
    "gemma2": {**MIXED, "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**MIXED, "head_dim": 16, "query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": WINDOW, "head_dim": 16},
    "phi3": {"sliding_window": WINDOW, "pad_token_id": 0},
    "gpt_oss": {**MIXED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 16},
}
"""Settings of each architecture, by its name in transformers."""

EAGER = ("gemma2", "gpt_oss")
"""Architectures that transformers computes in full by ``eager`` alone."""


def attention_of(kind: str) -> str:
    """Return the attention that computes an architecture in full, by its name in transformers."""
    return "eager" if kind in EAGER else "sdpa"


def save_local(kind: str, folder: Path, **changes: Any) -> Path:
    """Write a model of random weights unlike transformers' initial ones; return the folder."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes = {"vocab_size": len(VOCAB), "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    special = {"bos_token_id": None, "eos_token_id": 0}
    config = AutoConfig.for_model(kind, **{**heads, **sizes, **special, **MODELS[kind], **changes})
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        mean = 1.0 if parameter.ndim == 1 and "norm" in name and "gemma" not in kind else 0.0
        torch.nn.init.normal_(parameter, mean, 0.2)
    model.save_pretrained(folder)
    return folder


def load_local(kind: str, folder: Path) -> Any:
    """Return the model as transformers computes it in full, in float32."""
    attention = attention_of(kind)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
