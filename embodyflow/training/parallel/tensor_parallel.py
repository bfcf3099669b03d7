"""Tensor parallelism: several ranks hold parts of a model's matrices and compute on the same rows together.

A layer with split outputs (``colwise``) feeds a layer with split inputs (``rowwise``). In between, in attention and the
MLP, each rank has its own heads and units (Shoeybi et al. 2019, arXiv:1909.08053, section 3). The plan, which
transformers ships with the model, says which layer is which. All other weights are replicated.
"""

import logging
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

SPLIT: Mapping[str, Callable[[], ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
"""Kinds of layers in a plan that are split over the ranks."""

SHARED = "replicated_with_grad_allreduce"
"""The kind of a replicated layer that each rank applies to its own heads: its gradient is the sum over the ranks."""

ADAPTER = {"colwise": "lora_B.default", "rowwise": "lora_A.default"}
"""The matrix of an adapter (:mod:`embodyflow.training.lora`) that is split like its layer, by kind of layer."""


def split(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Split a model in place. Afterwards every parameter is a DTensor on the mesh, and a rank computes with its part.

    Args:
        model: Model with the same weights on all ranks, with or without adapters, before FSDP.
        plan: Kind of layer by name pattern, in which ``*`` matches a layer number.
        mesh: One-dimensional mesh of the ranks that hold the model together.

    Raises:
        KeyError: The plan has a kind of layer that is neither :data:`SHARED` nor in :data:`SPLIT`.
    """
    # torch warns at every gather that a full tensor takes two collectives, one per mesh dimension.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    kinds = {name: kind for name, _ in model.named_modules() for key, kind in plan.items() if fnmatchcase(name, key)}
    styles: dict[str, Any] = {}
    for name, kind in kinds.items():
        if kind != SHARED:
            styles |= {layer: SPLIT[kind]() for layer in _layers(model, name, kind)}
    parallelize_module(model, mesh, styles, src_data_rank=None)
    _replicate(model, mesh, {name for name, kind in kinds.items() if kind == SHARED})


def _layers(model: nn.Module, name: str, kind: str) -> list[str]:
    """Return the names of the linear layers to split: the layer itself, or its base layer and half of its adapter."""
    if isinstance(model.get_submodule(name), nn.Linear):
        return [name]
    return [f"{name}.base_layer", f"{name}.{ADAPTER[kind]}"]


def _replicate(model: nn.Module, mesh: DeviceMesh, shared: set[str]) -> None:
    """Turn weights that are not split into replicated DTensors; their modules still compute with plain tensors.

    Gradient norms, optimizers and FSDP need all weights of a model on one mesh.
    """
    replicated: dict[int, nn.Parameter] = {}  # by id, so that tied weights stay one parameter
    for name, module in model.named_modules():
        plain = {key: value for key, value in module._parameters.items() if _is_plain(value)}
        for key, value in plain.items():
            if id(value) not in replicated:
                spread = DTensor.from_local(value.detach(), mesh, [Replicate()], run_check=False)
                replicated[id(value)] = nn.Parameter(spread, value.requires_grad)
            module._parameters[key] = replicated[id(value)]
        if plain:
            _compute_locally(module, tuple(plain), Partial() if name in shared else Replicate())


def _is_plain(value: nn.Parameter | None) -> bool:
    return value is not None and not isinstance(value, DTensor)


def _compute_locally(module: nn.Module, names: tuple[str, ...], gradient: Placement) -> None:
    """Replace a module's parameters by plain tensors during its forward pass.

    Args:
        module: Module with the parameters.
        names: Names of the parameters.
        gradient: Placement of the gradient: ``Partial`` if the ranks' gradients must be summed, else ``Replicate``.
    """

    def show(module: nn.Module, inputs: Any) -> None:
        for name in names:
            value: Any = module._parameters[name]
            # Python finds an instance attribute before it asks nn.Module for the parameter of that name.
            vars(module)[name] = value.to_local(grad_placements=[gradient])

    def hide(module: nn.Module, inputs: Any, outputs: Any) -> None:
        for name in names:
            vars(module).pop(name, None)

    module.register_forward_pre_hook(show)
    # always_call, because activation checkpointing ends its recomputation early with an exception.
    module.register_forward_hook(hide, always_call=True)
