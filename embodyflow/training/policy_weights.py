"""The trained weights of a policy, and the reference policy that RL started from.

Outside of the trainer, weights are full tensors under the names of the policy's model, whichever of them are trained.
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

from embodyflow.data.parts import FullWeights
from embodyflow.policies.base import Policy
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.parallel.weight_buckets import ShardedWeights

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class PolicyWeights(Protocol):
    """The trainer's handle on a policy's weights. Methods are collectives if the policy is sharded."""

    @property
    def policies(self) -> list[Policy]:
        """The trained policy and any further models that belong to it."""

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Yield the reference policy for evaluation without gradients within the block."""

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Make all weights trainable within the block, for a warm start."""

    def set_reference(self) -> Mapping[str, Any]:
        """Make the current policy the reference; return its sharded state under the names of the policy's model."""

    def reference_state(self) -> dict[str, Any]:
        """Return the sharded state of a reference that ``algorithm.kl.refresh_every`` moves, for a checkpoint."""

    def load_reference_state(self, state: dict[str, Any]) -> None:
        """Load what :meth:`reference_state` returned."""

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""

    def in_parts(self) -> FullWeights:
        """Return the full weights in parts, without a copy of the whole; every rank must exhaust them."""

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load these full weights; every rank must get them."""

    def load_reference(self, folder: str) -> None:
        """Restore the reference policy from the checkpoint of iteration 0."""

    def export(self, folder: Path) -> None:
        """Write the policy to a folder that its class can load; rank 0 writes."""


class AllWeights:
    """Weights of a policy that trains all of them. A second copy of the model is the reference.

    Args:
        policy: Policy before sharding.
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
        """Yield the second copy."""
        yield self._reference

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Change nothing: all weights are trainable already."""
        yield

    def set_reference(self) -> Mapping[str, Any]:
        """Copy the policy's weights to the reference; return the policy's state."""
        state = self._policy.model.state_dict()
        self._reference.model.load_state_dict(state)
        return state

    def reference_state(self) -> dict[str, Any]:
        """Return the state of the second copy."""
        state: dict[str, Any] = get_model_state_dict(self._reference.model)
        return state

    def load_reference_state(self, state: dict[str, Any]) -> None:
        """Load a state into the second copy."""
        set_model_state_dict(self._reference.model, state)

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""
        # On one rank the state holds the parameters themselves, which the next step changes.
        return {name: value.numpy().copy() for name, value in full_state(self._policy.model).items()}

    def in_parts(self) -> FullWeights:
        """Return the full weights in parts, some of which are views of the weights themselves."""
        state: dict[str, Any] = get_model_state_dict(self._policy.model)
        weights = ShardedWeights(state)
        return FullWeights(weights.outlines, weights.parts())

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load these full weights."""
        load_full(self._policy.model, {name: torch.from_numpy(array) for name, array in weights.items()})

    def load_reference(self, folder: str) -> None:
        """Restore the reference from a checkpoint."""
        state: dict[str, Any] = {"policy": {"model": self.reference_state()}}
        load_checkpoint(state, folder)
        self.load_reference_state(state["policy"]["model"])

    def export(self, folder: Path) -> None:
        """Write the policy to a folder."""
        if weights := self.full():
            self._policy.export(weights, folder)


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's full state on the CPU on rank 0, and an empty one on other ranks."""
    state: dict[str, Any] = get_model_state_dict(model, options=FULL)
    return state


def load_full(model: nn.Module, state: dict[str, Any], *, strict: bool = True) -> None:
    """Load a full state, which every rank must get; if not ``strict``, the state may be incomplete."""
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, strict=strict))
