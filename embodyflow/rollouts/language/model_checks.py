"""Checks that trainer and engine of a language job can handle its model, before a process starts."""

import difflib
import re
from pathlib import Path
from typing import Any

from embodyflow.config.language import LanguageConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.language.causal_lm.split_causal_lm import check_split
from embodyflow.policies.pretrained.weight_files import check_tokenizer, check_weights, read_object
from embodyflow.policies.pretrained.whole_models import check_whole, read_config

PLAIN = {"llama", "mistral", "qwen2", "qwen3"}
"""Architectures of transformers that need no further check. With random weights their checks do not import torch."""
_HUB_NAME = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]{0,95}", re.ASCII)


def check_model(config: LanguageConfig) -> None:
    """Check that the model exists, that it can be split, and that trainer and engine can handle its architecture.

    Raises:
        ConfigError: A check failed; one line names the key and what is allowed.
    """
    path, scratch, tensor_size = config.policy.path, config.policy.scratch, config.trainer.tensor_parallel_size
    tokenizer = config.policy.tokenizer
    if tokenizer is not None and ":" not in tokenizer and is_folder(tokenizer) and not tokenizer.endswith(".gguf"):
        allowed = "allowed are a folder with one, a name on Hugging Face's hub and module:function"
        check_tokenizer(Path(tokenizer).expanduser(), f"policy.tokenizer={tokenizer}", allowed)
    for key, name in (("policy.path", path), ("policy.tokenizer", tokenizer)):
        _check_hub_name(key, name)
    if scratch is not None:
        key = f"policy.scratch.model_type={scratch.model_type}"
        if scratch.model_type not in PLAIN:
            _check_name(scratch.model_type, key)
        check_split(scratch.model_dump(), tensor_size)
        if scratch.model_type not in PLAIN:
            check_architecture(config, _sized(scratch.model_dump()), key)
    elif path is not None and is_folder(path):
        file = _folder(path) / "config.json"
        if not file.is_file():
            raise ConfigError(
                f"policy.path={path}: has no config.json; allowed are a Hugging Face folder, a GGUF file and a model "
                "name on Hugging Face's hub"
            )
        key = f"policy.path={path}"
        values = read_object(file, key)
        check_split(values, tensor_size)
        _check_positions(config, values)
        if values.get("model_type") not in PLAIN:
            check_architecture(config, read_config(file.parent, key), key)
        check_weights(file.parent, key)
        if tokenizer is None:
            check_tokenizer(file.parent, key, "set policy.tokenizer to one")
        own = f"policy.tokenizer={tokenizer}" if tokenizer is not None else key
        folder = Path(tokenizer).expanduser() if tokenizer is not None else file.parent
        _check_vocabulary(folder / "tokenizer.json", own, values.get("vocab_size"), key)
        _check_parameters(file.parent, key)


def _check_parameters(folder: Path, key: str) -> None:
    from transformers import AutoModelForCausalLM  # imports torch

    check_whole(AutoModelForCausalLM, folder, key)


def _check_hub_name(key: str, name: str | None) -> None:
    """Refuse what is neither a local folder, nor ``module:function``, nor a possible name on the hub."""
    if name is None or is_folder(name) or (key == "policy.tokenizer" and ":" in name):
        return
    if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"{key}={name}: is no folder, and no name on Hugging Face's hub, such as Qwen/Qwen3-0.6B")


def _check_vocabulary(file: Path, key: str, size: object, model: str) -> None:
    """Refuse a tokenizer whose own vocabulary is larger than the model's; added tokens may be more, if none uses them.

    Args:
        file: ``tokenizer.json``; without it nothing is checked.
        key: Key and value that name the tokenizer.
        size: ``vocab_size`` of the model.
        model: Key and value that name the model.
    """
    if not file.is_file() or not isinstance(size, int):
        return
    parts = read_object(file, key).get("model")
    words = parts.get("vocab") if isinstance(parts, dict) else None
    if isinstance(words, dict | list) and len(words) > size:
        raise ConfigError(
            f"{key}: its tokenizer has {len(words)} tokens, and {model} only vocab_size={size}; allowed is the "
            "tokenizer of the model"
        )


def _check_name(model_type: str, key: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if model_type not in CONFIG_MAPPING_NAMES:
        near = difflib.get_close_matches(model_type, CONFIG_MAPPING_NAMES, n=3)
        raise ConfigError(
            f"{key}: transformers has no such architecture; "
            f"allowed are, for example, {', '.join(near or ['qwen3', 'llama', 'gpt2'])}"
        )


def check_architecture(config: LanguageConfig, model: Any, key: str) -> None:
    """Check that trainer and engine can handle an architecture.

    Args:
        config: Run configuration.
        model: Configuration of the model in transformers.
        key: Key and value that name the model.

    Raises:
        ConfigError: They cannot; one line names the key and what is allowed.
    """
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    from embodyflow.generation.transformers_engine.supported_models import check_model
    from embodyflow.policies.language.causal_lm.windows_causal_lm import KINDS

    kind = model.model_type
    if model.get_text_config() is not model:
        raise ConfigError(f"{key}: {kind} reads more than text; allowed are models of text alone, such as its decoder")
    if type(model) not in AutoModelForCausalLM._model_mapping:
        raise ConfigError(f"{key}: {kind} is no causal language model of transformers")
    if not hasattr(model, "max_position_embeddings"):
        raise ConfigError(f"{key}: {kind} does not state its max_position_embeddings; allowed are models that do")
    built = AutoModelForCausalLM._model_mapping[type(model)]
    others = sorted({*(getattr(model, "layer_types", None) or ())} - {*KINDS})
    if others or built._is_stateful:
        raise ConfigError(
            f"{key}: {kind} has layers of the kind {others[0] if others else 'recurrent'}, which the trainer cannot "
            f"pack into lines; allowed are {' and '.join(KINDS)}"
        )
    _check_attention(config.policy.attn_implementation, model, built)
    if config.rollout.generation.name == "hf":
        check_model(model)
    if config.algorithm.needs_critic and type(model) not in AutoModelForTokenClassification._model_mapping:
        raise ConfigError(
            f"algorithm.advantage={config.algorithm.advantage}: needs a critic, and transformers has no token "
            f"classifier for the {kind} of {key}; allowed are advantages without a critic, such as grpo"
        )


def is_folder(path: str) -> bool:
    """Return True if the path is a local folder or file, and not ``owner/name`` on the hub."""
    return path.endswith(".gguf") or path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()


def _folder(path: str) -> Path:
    """Return a local folder, or the one that a GGUF file is converted to."""
    if not path.endswith(".gguf"):
        return Path(path).expanduser()
    from embodyflow.policies.language.causal_lm.gguf_causal_lm import folder_of_gguf

    return folder_of_gguf(path)


def _check_attention(attention: str, model: Any, built: Any) -> None:
    """Check that transformers computes the architecture in full by the configured attention."""
    key, kind = f"policy.attn_implementation={attention}", model.model_type
    supported = {
        "eager": True,
        "sdpa": built._supports_sdpa and not getattr(model, "attn_logit_softcapping", None),
        "flash_attention_2": built._supports_flash_attn,
    }
    if not supported[attention]:
        allowed = [name for name, is_supported in supported.items() if is_supported]
        raise ConfigError(f"{key}: does not compute the attention of {kind} in full; allowed are {', '.join(allowed)}")


def _check_positions(config: LanguageConfig, values: dict[str, Any]) -> None:
    """Check that the model can attend to the longest row, unless ``max_model_len`` overrides its limit."""
    rollout, positions = config.rollout, values.get("max_position_embeddings", values.get("n_positions"))
    if rollout.generation.max_model_len is None and positions is not None and rollout.longest_row > positions:
        raise ConfigError(
            f"rollout.max_prompt_tokens + rollout.max_response_tokens = {rollout.longest_row} exceed the "
            f"max_position_embeddings={positions} of policy.path={config.policy.path}"
        )


def _sized(sizes: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**sizes)
