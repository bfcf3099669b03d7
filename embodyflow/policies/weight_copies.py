"""Published weights in a model: copies, one weight at a time, and views of those that versions share."""

from collections.abc import Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

_VIEWS: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Names of the weights of each model that are views of shared memory."""


@torch.no_grad()
def copy_weights(
    model: nn.Module, weights: Mapping[str, np.ndarray], views: Mapping[str, np.ndarray] = MappingProxyType({})
) -> None:
    """Copy weights into a model; arrays in shared memory are read in place.

    Args:
        model: The model; its weights keep their dtypes and devices.
        weights: Arrays by the names of the model's ``state_dict``.
        views: Those of the arrays that keep their values. A model on the CPU that has their dtype gets views of them in
            place of copies, and must not write to them.

    Raises:
        ValueError: A name is missing or unknown, or a shape differs; the model is unchanged.
    """
    state = model.state_dict()
    problems = {
        "weights are missing:": state.keys() - weights.keys(),
        "the model has no weights named": weights.keys() - state.keys(),
        "weights have other shapes than the model's:": _misshapen(state, weights),
    }
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"{problem} {', '.join(sorted(names)[:3])}{more}")
    viewed = _view(model, views)
    for name, value in model.state_dict().items():
        if name not in viewed:
            value.copy_(as_tensor(weights[name]))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor of an array's memory, or of a copy if it is read-only, as arrays from other machines are."""
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def _view(model: nn.Module, views: Mapping[str, np.ndarray]) -> set[str]:
    """Make parameters views of arrays where they can be, and end the other views; return the names of the views."""
    owners, before = dict(model.named_parameters(remove_duplicate=False)), _VIEWS.get(model, set())
    viewed = {name for name in views.keys() & owners.keys() if _can_view(owners[name], views[name])}
    _VIEWS[model] = before | viewed  # whatever interrupts the next lines: nothing may be written to a view
    for name in viewed:
        owners[name].data = torch.from_numpy(views[name])
    for name in before - viewed:
        owners[name].data = torch.empty_like(owners[name])
    _VIEWS[model] = viewed
    return viewed


def _can_view(value: torch.Tensor, array: np.ndarray) -> bool:
    """Return True if a weight may be a view of an array."""
    return value.device.type == "cpu" and array.flags.writeable and value.dtype == torch.from_numpy(array).dtype


def _misshapen(state: Mapping[str, torch.Tensor], weights: Mapping[str, np.ndarray]) -> set[str]:
    return {name for name in state.keys() & weights.keys() if state[name].shape != weights[name].shape}
