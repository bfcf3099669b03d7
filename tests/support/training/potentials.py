"""Potentials of states for tests of shaped rewards."""

import torch


def total(states: torch.Tensor) -> torch.Tensor:
    """Return the sum of each state's features."""
    return states.sum(-1)


def nothing(states: torch.Tensor) -> torch.Tensor:
    """Return 0 for each state."""
    return states.new_zeros(len(states))


def pairs(states: torch.Tensor) -> torch.Tensor:
    """Return two numbers for each state, which is a mistake."""
    return states[:, :2]


def infinite(states: torch.Tensor) -> torch.Tensor:
    """Return inf for each state, which is a mistake."""
    return states.new_full((len(states),), float("inf"))
