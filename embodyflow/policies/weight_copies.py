"""Copies of published weights into a model, one weight at a time."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy weights into a model; arrays in shared memory are read in place.

    Args:
        model: The model; its weights keep their dtypes and devices.
        weights: Arrays by the names of the model's ``state_dict``.

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
    for name, value in state.items():
        value.copy_(as_tensor(weights[name]))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor of an array's memory, or of a copy if it is read-only, as arrays from other machines are."""
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def _misshapen(state: Mapping[str, torch.Tensor], weights: Mapping[str, np.ndarray]) -> set[str]:
    return {name for name in state.keys() & weights.keys() if state[name].shape != weights[name].shape}
