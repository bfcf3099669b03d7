"""Whether the files of a local checkpoint are whole, from their headers, without torch and without reading weights."""

import json
from pathlib import Path
from typing import Any

from embodyflow.errors import ConfigError

INDEX = ".index.json"
SAFETENSORS = "model.safetensors"
OLD_WEIGHTS = ("pytorch_model.bin", f"pytorch_model.bin{INDEX}")
"""Weights in pickles, which transformers reads too."""
LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that safetensors reads."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")


def check_weights(folder: Path, key: str) -> None:
    """Check that a folder has the weights of a model, and that those in safetensors are not cut short.

    Args:
        folder: Local folder.
        key: Key and value that name the folder.

    Raises:
        ConfigError: They are missing or damaged.
    """
    if has_pickles(folder):
        return
    for name in weight_names(folder, key):
        if (reason := why_unreadable(folder / name)) is not None:
            raise ConfigError(f"{key}: {name} {reason}")


def weight_paths(folder: Path) -> list[Path]:
    """Return the files of a model's weights: those that the index names, otherwise all in safetensors.

    Raises:
        ConfigError: The index is damaged.
    """
    if (folder / f"{SAFETENSORS}{INDEX}").is_file():
        return [folder / name for name in weight_names(folder, f"policy.path={folder}")]
    return sorted(folder.glob("*.safetensors"))


def has_pickles(folder: Path) -> bool:
    """Return True if a folder has a model's weights in pickles."""
    return any((folder / name).is_file() for name in OLD_WEIGHTS)


def check_tokenizer(folder: Path, key: str, advice: str) -> None:
    """Check that a folder has a tokenizer.

    Args:
        folder: Local folder.
        key: Key and value that name the folder.
        advice: Words that say what to do without one.

    Raises:
        ConfigError: It has none.
    """
    if not any((folder / name).is_file() for name in (*TOKENIZERS, "tokenizer_config.json")):
        raise ConfigError(f"{key}: has no tokenizer, such as tokenizer.json; {advice}")


def why_unreadable(file: Path) -> str | None:
    """Return why a safetensors file cannot be read, in words that follow its name; ``None`` if it is whole."""
    if not file.is_file():
        return "is missing"
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
            return "is damaged or cut short: it has no safetensors header"
        try:
            entries = json.loads(opened.read(length))
            ends = [int(each["data_offsets"][1]) for name, each in entries.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return f"is damaged: its safetensors header cannot be read: {error}"
    missing = 8 + length + max(ends, default=0) - size
    return f"is cut short: {missing} of its bytes are missing" if missing > 0 else None


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Return the shapes of arrays in a safetensors file, by name; it must be whole (:func:`why_unreadable`)."""
    with file.open("rb") as opened:
        entries = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return {name: each["shape"] for name, each in entries.items() if name != "__metadata__"}


def read_object(file: Path, key: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: The file is damaged, or holds something else.
    """
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {file.name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{key}: {file.name} is damaged: it holds no object")
    return content


def weight_names(folder: Path, key: str) -> list[str]:
    """Return the names of the files in safetensors that transformers reads a model from.

    Args:
        folder: Local folder.
        key: Key and value that name the folder.

    Raises:
        ConfigError: The folder has none, or its index is damaged.
    """
    index = folder / f"{SAFETENSORS}{INDEX}"
    if not index.is_file():
        if (folder / SAFETENSORS).is_file():
            return [SAFETENSORS]
        raise ConfigError(f"{key}: has no weights; allowed are folders with {SAFETENSORS}")
    weights = read_object(index, key).get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(name, str) for name in weights.values()):
        raise ConfigError(f"{key}: {index.name} is damaged: it has no weight_map")
    return sorted(set(weights.values()))
