"""Policies in GGUF files, converted to Hugging Face folders.

A file is converted once: its weights are dequantised to float32 and kept in the Hugging Face cache, where trainer and
engines load them. A file whose size or time of change differs is converted again.
"""

import fcntl
import hashlib
import logging
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import is_gguf_available

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.whole_models import load_whole

log = logging.getLogger(__name__)

SUFFIX = ".gguf"


def is_gguf(path: str) -> bool:
    """Return True if a policy's path names a GGUF file."""
    return path.endswith(SUFFIX)


def readable_path(path: str) -> str:
    """Return the folder of a GGUF file, or the path itself, which transformers finds."""
    return str(folder_of_gguf(path)) if is_gguf(path) else path


def folder_of_gguf(path: str) -> Path:
    """Return the Hugging Face folder of a GGUF file; the first call converts the file, which others wait for.

    Args:
        path: GGUF file.

    Raises:
        ConfigError: The file cannot be converted; the message names the reason.
    """
    key, file = f"policy.path={path}", Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{key}: there is no such file")
    facts = file.stat()
    name = hashlib.sha256(f"{file}:{facts.st_size}:{facts.st_mtime_ns}".encode()).hexdigest()[:24]
    folder = Path(constants.HF_HOME) / "embodyflow-gguf" / name
    with _lock(folder.with_suffix(".lock")):
        if not folder.exists():
            if not is_gguf_available():
                raise ConfigError(f"{key}: the package gguf is not installed; make install EXTRAS=dev,gguf")
            log.info("%s is converted to %s, once", path, folder)
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            try:
                _convert(file, unfinished, key)
            except ConfigError:
                raise
            except (ValueError, TypeError, LookupError, ArithmeticError, OSError, RuntimeError, struct.error) as error:
                first = str(error).strip().partition("\n")[0]
                raise ConfigError(f"{key}: transformers cannot read this file: {first}") from error
            unfinished.rename(folder)
    return folder


def _convert(file: Path, folder: Path, key: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    _with_begin(tokenizer, file).save_pretrained(folder)
    loaded = load_whole(AutoModelForCausalLM, file.parent, key, gguf_file=file.name, dtype=torch.float32)
    config, weights = loaded.config, loaded.state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # transformers does not save a model with one
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.save_pretrained(folder)


def _with_begin(tokenizer: Any, file: Path) -> PreTrainedTokenizerFast:
    """Return a tokenizer that adds the begin of a sequence where the file asks for it.

    transformers leaves it out for some architectures, and a base model then answers nonsense.
    """
    backend, begin = tokenizer.backend_tokenizer, tokenizer.bos_token_id
    if _asks_for_begin(file):
        if begin is None:
            raise ValueError("it asks for a token that begins a sequence, and has none")
        if tokenizer("a")["input_ids"][:1] != [begin]:
            token = tokenizer.bos_token
            backend.post_processor = TemplateProcessing(
                single=f"{token}:0 $A:0", pair=f"{token}:0 $A:0 {token}:1 $B:1", special_tokens=[(token, begin)]
            )
            log.warning("%s: the tokenizer now begins each text with %s, as the file asks for", file.name, token)
    special = {f"{name}_token": getattr(tokenizer, f"{name}_token") for name in ("bos", "eos", "unk", "pad")}
    # The architecture's own class would build another tokenizer from the vocabulary.
    plain = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    plain.chat_template = tokenizer.chat_template
    return plain


def _asks_for_begin(file: Path) -> bool:
    """Return True if a file wants its texts to begin with a token, as llama.cpp reads it."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    wish = fields.get("tokenizer.ggml.add_bos_token")
    if wish is not None:
        return bool(wish.contents())
    kind = fields.get("tokenizer.ggml.model")
    return kind is not None and kind.contents() == "llama"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
