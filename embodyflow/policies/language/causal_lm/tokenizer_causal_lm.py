"""Tokenizers of transformers, built from a configuration without importing torch, which takes seconds."""

from typing import Any

from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.references import resolve


def build_tokenizer(config: CausalLMConfig) -> Any:
    """Return the ``transformers`` tokenizer."""
    name = config.tokenizer or config.path
    assert name is not None
    return resolve(name)() if ":" in name else _pretrained(name)


def _pretrained(path: str) -> Any:
    from transformers import AutoTokenizer

    from embodyflow.policies.language.causal_lm.gguf_causal_lm import readable_path  # imports torch

    return AutoTokenizer.from_pretrained(readable_path(path))
