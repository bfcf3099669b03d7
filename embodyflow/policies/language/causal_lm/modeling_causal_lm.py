"""Models of transformers, built from a configuration."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GenerationConfig,
)
from transformers.utils import GENERATION_CONFIG_NAME

from embodyflow.policies.language.causal_lm import checkpoint_causal_lm as checkpoint
from embodyflow.policies.language.causal_lm import shared_prompts_causal_lm
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.gguf_causal_lm import folder_of_gguf, is_gguf, readable_path
from embodyflow.policies.language.causal_lm.split_causal_lm import check_split
from embodyflow.policies.language.layers import onednn_linear, rms_norm
from embodyflow.policies.pretrained.checkpoints import is_outline
from embodyflow.policies.pretrained.whole_models import load_whole

HUB_FILES = ["model*.safetensors*", "*.json", "*.txt", "*.model", "*.jinja"]
"""Files to fetch of a repository on the hub, which may hold the weights in other formats too."""


def build_model(config: CausalLMConfig, tokenizer: Any) -> torch.nn.Module:
    """Return the model in float32: pretrained, or of random weights from torch's global generator."""
    if config.path is None or is_outline():
        return _prepared(_random_model(config, tokenizer))
    model_config = _model_config(config, tokenizer)
    key, options = f"policy.path={config.path}", _options(config)
    return _prepared(load_whole(AutoModelForCausalLM, readable_path(config.path), key, config=model_config, **options))


def build_empty_model(config: CausalLMConfig, tokenizer: Any) -> torch.nn.Module | None:
    """Return the pretrained model without its weights, which it gets when it is sharded (:mod:`.checkpoint_causal_lm`).

    Returns:
        The model, or ``None`` if there is no checkpoint or it cannot be read in that way.
    """
    if config.path is None:
        return None
    model = checkpoint.empty(lambda: _random_model(config, tokenizer))
    return _prepared(model) if checkpoint.can_be_read(model, folder_of(config.path)) else None


def folder_of(path: str) -> Path:
    """Return the folder with weights and tokenizer of a model, given as a folder, a GGUF file or a name on the hub."""
    if is_gguf(path):
        return folder_of_gguf(path)
    folder = Path(path).expanduser()
    return folder if folder.exists() else Path(snapshot_download(path, allow_patterns=HUB_FILES))


def stop_tokens_of(config: CausalLMConfig, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end a response: the tokenizer's end of a sequence, and those that the model's folder adds.

    Chat models may end a turn with a token of its own: ``<|im_end|>`` in phi-4, ``<end_of_turn>`` in Gemma.
    """
    own: int = tokenizer.eos_token_id
    folder = None if config.path is None else folder_of(config.path)
    if folder is None or not (folder / GENERATION_CONFIG_NAME).exists():
        return (own,)
    named = GenerationConfig.from_pretrained(folder).eos_token_id
    return tuple(sorted({own, *(named if isinstance(named, list) else [named])} - {None}))


def build_value_model(config: CausalLMConfig, tokenizer: Any) -> torch.nn.Module:
    """Return a model of the same architecture that gives each token one number, which is 0 before any training."""
    model_config = _model_config(config, tokenizer)
    model_config.num_labels = 1
    model: Any = AutoModelForTokenClassification.from_config(model_config, **_options(config))
    for parameter in value_head(model).parameters():
        torch.nn.init.zeros_(parameter)
    return _prepared(model)


def value_head(model: Any) -> torch.nn.Module:
    """Return the head of a value model."""
    head: torch.nn.Module = model.score if hasattr(model, "score") else model.classifier
    return head


def blocks_of(model: Any) -> list[torch.nn.Module]:
    """Return the layers to shard one by one: those that transformers keeps whole."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def split_plan_of(model: Any, size: int) -> dict[str, str]:
    """Return the layers to split over ranks: transformers' word for the kind of split, by name; ``*`` is any number.

    Embedding and head stay whole, because log-probs need whole rows of logits.

    Raises:
        ConfigError: The model cannot be split over ``size`` ranks.
    """
    check_split(model.config.to_dict(), size)
    plan: dict[str, str] = model.config.base_model_tp_plan
    # The plan of a tied model splits the embedding too.
    return {f"{model.base_model_prefix}.{n}": kind for n, kind in plan.items() if kind != "embedding_rowwise"}


def save_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder that transformers and vLLM load."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _random_model(config: CausalLMConfig, tokenizer: Any) -> Any:
    return AutoModelForCausalLM.from_config(_model_config(config, tokenizer), **_options(config))


def _options(config: CausalLMConfig) -> dict[str, Any]:
    return {"attn_implementation": config.attn_implementation, "dtype": torch.float32}


def _model_config(config: CausalLMConfig, tokenizer: Any) -> Any:
    if config.scratch is None:
        assert config.path is not None
        model_config: Any = AutoConfig.from_pretrained(readable_path(config.path))
    else:
        sizes = config.scratch.model_dump()
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        model_config = AutoConfig.for_model(sizes.pop("model_type"), vocab_size=len(tokenizer), **sizes, **special)
    # A row's log-probs must be the same at every evaluation, so nothing may be dropped at random.
    for name in vars(model_config):
        if name.endswith(("dropout", "pdrop")):
            setattr(model_config, name, 0.0)
    model_config.classifier_dropout = 0.0
    return model_config


def _prepared(model: Any) -> torch.nn.Module:
    model.config.use_cache = False
    onednn_linear.use_in(model)
    rms_norm.use_in(model)
    shared_prompts_causal_lm.use_in(model)
    prepared: torch.nn.Module = model.eval()
    return prepared
