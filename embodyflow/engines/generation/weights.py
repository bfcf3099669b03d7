"""New weights for a transformers model, checked before any is changed."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import nn


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of the model's ``state_dict``, those of one tensor together."""
    groups: dict[tuple[int, torch.Size], list[str]] = {}
    for name, tensor in model.state_dict().items():
        groups.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    return list(groups.values())


def check_weights(
    weights: Mapping[str, npt.NDArray[Any]], shapes: Mapping[str, Iterable[int]], tied: list[list[str]]
) -> None:
    """Check that the weights are all of a model's and no others.

    Args:
        weights: by name.
        shapes: of every name in the model's ``state_dict``.
        tied: its names, those of one tensor together: any of them will do.

    Raises:
        ValueError: an unknown name, a missing weight, another shape, or two values for one tensor.
    """
    unknown = sorted(weights.keys() - shapes.keys())
    missing = [names[0] for names in tied if not any(name in weights for name in names)]
    for what, names in (("the model has no weights named", unknown), ("weights are missing:", missing)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"{what} {', '.join(names[:3])}{more}")
    for name, array in weights.items():
        if tuple(array.shape) != tuple(shapes[name]):
            raise ValueError(f"{name}: shape {tuple(array.shape)}, the model's is {tuple(shapes[name])}")
    for names in tied:
        given = [name for name in names if name in weights]
        if any((weights[name] != weights[given[0]]).any() for name in given[1:]):
            raise ValueError(f"{' and '.join(given)} are tied in the model and have different values")


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Copy weights into the model, in its dtype and on its device, after :func:`check_weights`."""
    state = model.state_dict()
    check_weights(weights, {name: tensor.shape for name, tensor in state.items()}, tied_names(model))
    for name, array in weights.items():
        state[name].copy_(torch.tensor(array))  # a copy, as arrays in shared memory may be read-only
