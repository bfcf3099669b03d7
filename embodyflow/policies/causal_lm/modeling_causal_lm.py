"""Models and tokenizers of transformers, as a configuration names them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from embodyflow.policies.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.references import resolve


def build_tokenizer(config: CausalLMConfig) -> Any:
    """Return the tokenizer, of ``transformers``."""
    name = config.tokenizer or config.path
    assert name is not None
    return resolve(name)() if ":" in name else AutoTokenizer.from_pretrained(name)


def build_model(config: CausalLMConfig, tokenizer: Any) -> torch.nn.Module:
    """Return the model in float32: pretrained, or of random weights drawn from torch's global generator."""
    options = {"attn_implementation": config.attn_implementation, "dtype": torch.float32}
    model_config = _model_config(config, tokenizer)
    if config.path is None:
        model: Any = AutoModelForCausalLM.from_config(model_config, **options)
    else:
        model = AutoModelForCausalLM.from_pretrained(config.path, config=model_config, **options)
    return _prepared(model)


def build_value_model(config: CausalLMConfig, tokenizer: Any) -> torch.nn.Module:
    """Return the same architecture with one number per token instead of logits, 0 before any training."""
    model_config = _model_config(config, tokenizer)
    model_config.num_labels = 1
    model: Any = AutoModelForTokenClassification.from_config(
        model_config, attn_implementation=config.attn_implementation, dtype=torch.float32
    )
    for parameter in value_head(model).parameters():
        torch.nn.init.zeros_(parameter)
    return _prepared(model)


def value_head(model: Any) -> torch.nn.Module:
    """Return what a value model has on top of the language model."""
    head: torch.nn.Module = model.score if hasattr(model, "score") else model.classifier
    return head


def blocks_of(model: Any) -> list[torch.nn.Module]:
    """Return the layers that are sharded one by one: those that transformers does not split either."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def save_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder that transformers and vLLM load."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _model_config(config: CausalLMConfig, tokenizer: Any) -> Any:
    if config.scratch is None:
        model_config: Any = AutoConfig.from_pretrained(config.path)
    else:
        sizes = config.scratch.model_dump()
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        model_config = AutoConfig.for_model(sizes.pop("model_type"), vocab_size=len(tokenizer), **sizes, **special)
    # A row's log-probs must be the same every time they are asked for.
    for name in vars(model_config):
        if name.endswith(("dropout", "pdrop")):
            setattr(model_config, name, 0.0)
    model_config.classifier_dropout = 0.0
    return model_config


def _prepared(model: Any) -> torch.nn.Module:
    model.config.use_cache = False
    prepared: torch.nn.Module = model.eval()
    return prepared
