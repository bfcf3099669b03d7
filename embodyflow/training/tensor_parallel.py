"""A model whose matrices are split over several ranks, which compute on the same rows together.

A layer whose outputs are split (``colwise``) feeds one whose inputs are (``rowwise``), so that in between, in attention
and the MLP, each rank has heads and units of its own (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Which layer is
which is in the plan that transformers has for the model. All other weights every rank has whole.
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
"""Kinds of layers in a plan that are split."""

SHARED = "replicated_with_grad_allreduce"
"""The kind of a layer that each rank uses, whole, on heads of its own: its gradient is the sum of theirs."""

ADAPTER = {"colwise": "lora_B.default", "rowwise": "lora_A.default"}
"""Which half of an adapter (:mod:`embodyflow.training.lora`) is split as the layer that it belongs to."""


def split(model: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Split a model in place; every parameter is a DTensor on the mesh afterwards, and in computation a rank's part.

    Args:
        model: the same on all ranks, with adapters or without; FSDP comes after.
        plan: kind of layer by name, ``*`` for any number in it.
        mesh: of the ranks that hold the model together, one-dimensional.

    Raises:
        KeyError: the plan has a kind of layer that is none of :data:`SPLIT` and :data:`SHARED`.
    """
    # That a whole tensor takes two collectives to gather, one for each dimension of a mesh, is told again and again.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    kinds = {name: kind for name, _ in model.named_modules() for key, kind in plan.items() if fnmatchcase(name, key)}
    styles: dict[str, Any] = {}
    for name, kind in kinds.items():
        if kind != SHARED:
            styles |= {layer: SPLIT[kind]() for layer in _layers(model, name, kind)}
    parallelize_module(model, mesh, styles, src_data_rank=None)
    _replicate(model, mesh, {name for name, kind in kinds.items() if kind == SHARED})


def _layers(model: nn.Module, name: str, kind: str) -> list[str]:
    """Return the linear layers that a layer is made of and that are split: with an adapter there are two."""
    if isinstance(model.get_submodule(name), nn.Linear):
        return [name]
    return [f"{name}.base_layer", f"{name}.{ADAPTER[kind]}"]


def _replicate(model: nn.Module, mesh: DeviceMesh, shared: set[str]) -> None:
    """Let every rank have the weights whole that are not split; their modules see plain tensors as they compute.

    All of a model's weights lie on one mesh then, which norms of gradients, optimizers and FSDP ask for.
    """
    whole: dict[int, nn.Parameter] = {}  # a tied weight stays one
    for name, module in model.named_modules():
        plain = {key: value for key, value in module._parameters.items() if _is_plain(value)}
        for key, value in plain.items():
            if id(value) not in whole:
                spread = DTensor.from_local(value.detach(), mesh, [Replicate()], run_check=False)
                whole[id(value)] = nn.Parameter(spread, value.requires_grad)
            module._parameters[key] = whole[id(value)]
        if plain:
            _compute_locally(module, tuple(plain), Partial() if name in shared else Replicate())


def _is_plain(value: nn.Parameter | None) -> bool:
    return value is not None and not isinstance(value, DTensor)


def _compute_locally(module: nn.Module, names: tuple[str, ...], gradient: Placement) -> None:
    """Show a module plain tensors in place of its parameters, during its forward pass.

    Args:
        module: that has them.
        names: of the parameters.
        gradient: what a rank's gradient is to that of all.
    """

    def show(module: nn.Module, inputs: Any) -> None:
        for name in names:
            value: Any = module._parameters[name]
            # An attribute of the object is found before a parameter of the same name, which stays in its place.
            vars(module)[name] = value.to_local(grad_placements=[gradient])

    def hide(module: nn.Module, inputs: Any, outputs: Any) -> None:
        for name in names:
            vars(module).pop(name, None)

    module.register_forward_pre_hook(show)
    # Also after an exception: activations that are computed again stop by one as soon as there are enough.
    module.register_forward_hook(hide, always_call=True)
