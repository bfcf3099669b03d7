"""Published checkpoints, loaded from a folder or the Hugging Face hub."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._device import _device_constructors

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.weight_files import read_object, read_shapes, why_unreadable

Translate = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Function from a file's weights to the model's, by name."""


def checkpoint_folder(path: str, patterns: Sequence[str], what: str) -> Path:
    """Return a checkpoint's folder: ``path`` itself, or the folder that the hub's files were downloaded to.

    Args:
        path: Folder, or name on the hub.
        patterns: Patterns of the files to fetch from the hub.
        what: Key that names the checkpoint, for the error.

    Raises:
        ConfigError: There is no such folder, and the hub has no such repository or cannot be reached.
    """
    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(path, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{what}: is no local folder, and cannot be fetched from the hub: {reason}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's JSON file; empty if there is no such file.

    Raises:
        ConfigError: It is damaged.
    """
    return read_object(file, f"policy.path={file.parent}") if file.exists() else {}


@contextmanager
def outline() -> Iterator[None]:
    """Build models of shapes without values within the block, on torch's meta device."""
    # While transformers builds a model, it replaces torch.linspace. torch lists the functions that follow
    # torch.device("meta") once, at their first use, and a list made at that time lacks the real torch.linspace.
    _device_constructors.cache_clear()
    with torch.device("meta"):
        yield


def is_outline() -> bool:
    """Return True within :func:`outline`, where weights are not read."""
    return torch.get_default_device().type == "meta"


def load_weights(
    model: nn.Module,
    files: Sequence[Path],
    optional: Set[str] = frozenset(),
    translate: Translate | None = None,
) -> None:
    """Load files of weights into a model, as float32; the model may lie on the meta device.

    Nothing is loaded into an outline (:func:`is_outline`). It is compared with the files by their headers, unless one
    of them is on the hub.

    Args:
        model: Model to load into.
        files: Files that hold each weight once: safetensors, or state dicts that torch has written (``.pt``).
        optional: Names that the files may lack; the model must have real values there.
        translate: Function from a file's weights to the model's, by name; by default the names are the same.

    Raises:
        ConfigError: The files lack a weight, have one that the model lacks or has in another shape, or one with numbers
            that are not finite; or the header of a file cannot be read.
    """
    if is_outline():
        if files and all(file.is_file() for file in files):
            _check_headers(model, files, optional, translate)
        return
    shapes: dict[str, Mapping[str, Sequence[int]]] = {}
    for file in files:
        stored = _read_weights(file)
        state = {name: value.float() for name, value in (translate(stored) if translate else stored).items()}
        shapes[file.name] = {name: value.shape for name, value in state.items()}
        _check_present(model, {file.name: shapes[file.name]})
        for name, value in state.items():
            if not value.sum().isfinite():  # reads the weights once and allocates nothing
                raise ConfigError(f"policy.path: {file.name} has NaN or infinite numbers in {name}")
        model.load_state_dict(state, strict=False, assign=True)
    _check_missing(model, shapes, optional)


def _check_headers(model: nn.Module, files: Sequence[Path], optional: Set[str], translate: Translate | None) -> None:
    shapes: dict[str, Mapping[str, Sequence[int]]] = {}
    for file in files:
        stored = read_header(file)
        shapes[file.name] = {name: value.shape for name, value in (translate(stored) if translate else stored).items()}
    _check_present(model, shapes)
    _check_missing(model, shapes, optional)


def _check_present(model: nn.Module, shapes: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    for file, found in shapes.items():
        for name, shape in found.items():
            if name not in expected:
                raise ConfigError(f"policy.path: {file} has {name}, which is not a parameter of this model")
            if expected[name] != list(shape):
                raise ConfigError(
                    f"policy.path: {file} has {name} of shape {list(shape)}; this model's has {expected[name]}"
                )


def _check_missing(model: nn.Module, shapes: Mapping[str, Mapping[str, Sequence[int]]], optional: Set[str]) -> None:
    missing = sorted(model.state_dict().keys() - optional - {name for found in shapes.values() for name in found})
    if missing:
        raise ConfigError(f"policy.path: the weights lack {missing[0]}, and {len(missing) - 1} more")


def _read_weights(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return load_file(file)
    state: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def read_header(file: Path) -> dict[str, Tensor]:
    """Return a file's weights on the meta device, without reading values.

    Raises:
        ConfigError: The header cannot be read.
    """
    if file.suffix != ".safetensors":
        state: dict[str, Tensor] = torch.load(file, map_location="meta", weights_only=True)
        return state
    if (reason := why_unreadable(file)) is not None:
        raise ConfigError(f"policy.path={file.parent}: {file.name} {reason}")
    return {name: torch.empty(shape, device="meta") for name, shape in read_shapes(file).items()}
