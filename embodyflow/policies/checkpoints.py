"""Published checkpoints: from a folder or the Hugging Face hub, into a model whose parameters have the same names."""

import json
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import nn

from embodyflow.errors import ConfigError


def checkpoint_folder(path: str, patterns: Sequence[str], what: str) -> Path:
    """Return a checkpoint's folder: ``path``, or where the hub's files of that name were put.

    Args:
        path: folder, or name on the hub.
        patterns: of the files that are fetched from the hub.
        what: the key that names it, as the error says it.

    Raises:
        ConfigError: it is neither.
    """
    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(path, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{what}: is no folder here, and not to be had from the hub: {reason}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Return what a file says, nothing where there is none."""
    content: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return content


def load_weights(
    model: nn.Module,
    files: Sequence[Path],
    optional: Set[str] = frozenset(),
    translate: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
) -> None:
    """Give a model the weights in these safetensors files, as float32; it may lie on the meta device.

    Args:
        model: its parameters have the names in the files.
        files: which hold each weight once.
        optional: names that the files may lack; what the model has there must be real.
        translate: makes a file's weights by its names the model's by the model's own; by default they are the same.

    Raises:
        ConfigError: the files lack a weight, or have one that the model has not, or in another shape.
    """
    expected, found = {name: value.shape for name, value in model.state_dict().items()}, set(optional)
    for file in files:
        stored: dict[str, torch.Tensor] = load_file(file)
        state = {name: value.float() for name, value in (translate(stored) if translate else stored).items()}
        wrong = [name for name, value in state.items() if expected.get(name) != value.shape]
        if wrong:
            raise ConfigError(f"policy.path: {file.name} has {wrong[0]}, which is no parameter of this model")
        model.load_state_dict(state, strict=False, assign=True)
        found |= set(state)
    missing = sorted(set(expected) - found)
    if missing:
        raise ConfigError(f"policy.path: the weights lack {missing[0]}, and {len(missing) - 1} more")
