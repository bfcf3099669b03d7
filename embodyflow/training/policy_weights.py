"""Which weights of a policy are trained, and what the policy was when RL began.

Outside of the trainer weights are whole, under the names of the policy's own model, whatever is trained of them.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

from embodyflow.policies.base import Policy

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class PolicyWeights(Protocol):
    """What the trainer needs to know of it; methods are collectives where the policy is sharded."""

    @property
    def policies(self) -> list[Policy]:
        """The policy that is trained, and further models that belong to it."""

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Give the policy as it was when RL began, to be evaluated within the block, without gradients."""

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Have all weights trained within the block, by a warm start."""

    def start(self) -> Mapping[str, Any]:
        """Make the policy as it is now the start of RL; return its state by its own model's names, sharded as it is."""

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take these full weights, which every rank is given."""

    def load_start(self, folder: str) -> None:
        """Restore what the policy was when RL began from the checkpoint of iteration 0."""

    def export(self, folder: Path) -> None:
        """Write the policy to a folder that its class can be loaded from; rank 0 writes."""


class AllWeights:
    """All are trained; a second copy of the model is what it was at the start.

    Args:
        policy: not sharded yet.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._reference = policy, copy.deepcopy(policy)
        self._reference.model.requires_grad_(False)

    @property
    def policies(self) -> list[Policy]:
        """The policy and its reference."""
        return [self._policy, self._reference]

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Give the second copy."""
        yield self._reference

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Change nothing: all weights are trained anyway."""
        yield

    def start(self) -> Mapping[str, Any]:
        """Copy the policy's weights to the reference; return the policy's state."""
        state = self._policy.model.state_dict()
        self._reference.model.load_state_dict(state)
        return state

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""
        # On one rank the state is the parameters themselves, which the next step changes: hence the copy.
        return {name: value.numpy().copy() for name, value in full_state(self._policy.model).items()}

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take these full weights."""
        load_full(self._policy.model, {name: torch.from_numpy(array) for name, array in weights.items()})

    def load_start(self, folder: str) -> None:
        """Restore the reference."""
        state: dict[str, Any] = {"policy": {"model": get_model_state_dict(self._reference.model)}}
        load_checkpoint(state, checkpoint_id=folder)
        set_model_state_dict(self._reference.model, state["policy"]["model"])

    def export(self, folder: Path) -> None:
        """Write the policy to a folder."""
        if weights := self.full():
            self._policy.export(weights, folder)


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's whole state on the CPU, on rank 0; elsewhere nothing."""
    state: dict[str, Any] = get_model_state_dict(model, options=FULL)
    return state


def load_full(model: nn.Module, state: dict[str, Any], *, strict: bool = True) -> None:
    """Load a whole state, which every rank is given, or part of it where not ``strict``."""
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, strict=strict))
