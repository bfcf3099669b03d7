"""Loading of a checkpoint into a model that was built without weights; each rank reads its part of every tensor.

A model that is loaded before it is sharded needs its full memory on every rank, however many there are.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def empty(build: Callable[[], Any]) -> Any:
    """Return a transformers model whose parameters have shapes but no values; its buffers have values.

    Args:
        build: Function that builds the model, of random weights.
    """
    with init_empty_weights(include_buffers=False):
        model = build()
    model.tie_weights()  # tied weights got a parameter each
    return model


def can_be_read(model: nn.Module, folder: Path) -> bool:
    """Return True if a folder's safetensors hold all weights of the model by its names and in its shapes.

    transformers must load other checkpoints, since it renames and joins weights.
    """
    files = _files(folder)
    parameters = dict(model.named_parameters())
    if not parameters.keys() <= files.keys() or model.state_dict().keys() - _names(model):
        return False
    return all(_shape(files[name], name) == tuple(value.shape) for name, value in parameters.items())


def read(model: nn.Module, folder: Path, device: str) -> None:
    """Load weights into an :func:`empty` model, in its dtype; of a sharded model each rank reads its part.

    Args:
        model: Model that :func:`can_be_read` accepts; sharded or not.
        folder: Folder with safetensors.
        device: Device for weights and buffers.
    """
    files = _files(folder)
    weights: dict[int, nn.Parameter] = {}  # tied ones are one parameter, under several names
    state = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        if id(value) not in weights:
            weights[id(value)] = nn.Parameter(_read(files[name], name, value, device), value.requires_grad)
        state[name] = weights[id(value)]
    model.load_state_dict(state, assign=True)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


def _read(file: Path, name: str, like: torch.Tensor, device: str) -> torch.Tensor:
    with safe_open(file, "pt") as tensors:
        if not isinstance(like, DTensor):
            whole: torch.Tensor = tensors.get_tensor(name).to(device, like.dtype)
            return whole
        mesh, placements = like.device_mesh, like.placements
        shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, placements)
        part = torch.empty(shape, dtype=like.dtype)
        if part.numel():  # a rank may hold nothing of a tensor with fewer rows than ranks
            ranges = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
            part = tensors.get_slice(name)[ranges].contiguous()  # FSDP requires it, and columns are not
    return DTensor.from_local(
        part.to(device, like.dtype), mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor, by name; empty without safetensors."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    if not single.exists():
        return {}
    with safe_open(single, "pt") as tensors:
        return dict.fromkeys(tensors.keys(), single)


def _shape(file: Path, name: str) -> tuple[int, ...]:
    with safe_open(file, "pt") as tensors:
        return tuple(tensors.get_slice(name).get_shape())


def _names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters(remove_duplicate=False)}
