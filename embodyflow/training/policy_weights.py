"""The trained weights of a policy, and the reference policy that RL started from.

Outside of the trainer, weights are full tensors under the names of the policy's model, whichever of them are trained.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from embodyflow.data.parts import FullWeights
from embodyflow.policies.base import Policy
from embodyflow.training.checkpoint_reading import load_checkpoint
from embodyflow.training.parallel.sharding import reshard
from embodyflow.training.parallel.weight_buckets import ShardedWeights

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


class PolicyWeights(Protocol):
    """The trainer's handle on a policy's weights. Methods are collectives if the policy is sharded."""

    @property
    def policies(self) -> list[Policy]:
        """The trained policies, each of which is sharded by itself."""

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Yield the reference policy for evaluation without gradients within the block."""

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Make all weights trainable within the block, for a warm start."""

    def set_reference(self) -> Mapping[str, Any]:
        """Make the current policy the reference; return its sharded state under the names of the policy's model."""

    def reference_values(self) -> list[torch.Tensor]:
        """Return the weights that the reference does not share with the policy, sharded as the policy's."""

    def reference_state(self) -> dict[str, Any]:
        """Return the sharded state of a reference that ``algorithm.kl.refresh_every`` moves, for a checkpoint."""

    def load_reference_state(self, state: dict[str, Any]) -> None:
        """Load what :meth:`reference_state` returned."""

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""

    def in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return the full weights in parts, without a copy of the whole; every rank must exhaust them.

        Args:
            frozen_only: Leave out the weights that training changes.
        """

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load these full weights; every rank must get them."""

    def load_reference(self, folder: str) -> None:
        """Restore the reference policy from the checkpoint of iteration 0."""

    def export(self, folder: Path) -> None:
        """Write the policy to a folder that its class can load; rank 0 writes."""


class AllWeights:
    """Weights of a policy that trains all or some of them.

    The reference is a copy of the trained weights and of the buffers, sharded as they are. The policy has the values of
    that copy while the reference is evaluated, and its own are kept aside. So frozen weights exist once.

    Args:
        policy: Policy before sharding.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reference: dict[str, torch.Tensor] = {}

    @property
    def policies(self) -> list[Policy]:
        """The policy."""
        return [self._policy]

    @contextmanager
    def reference(self) -> Iterator[Policy]:
        """Yield the policy with the reference's weights; it has its own again whatever ends the block."""
        own = {name: value.clone() for name, value in _changing(self._policy.model).items()}
        try:
            self._put(self._reference)
            yield self._policy
        finally:
            try:
                self._put(own)
            except BaseException:  # the time limit of a node interrupts once, perhaps in here
                self._put(own)
                raise

    @contextmanager
    def warm_starting(self) -> Iterator[None]:
        """Change nothing: all weights are trainable already."""
        yield

    def set_reference(self) -> Mapping[str, Any]:
        """Copy the policy's weights to the reference; return the policy's state."""
        changing = _changing(self._policy.model)
        if changing.keys() == self._reference.keys():
            for name, value in changing.items():
                local(self._reference[name]).copy_(local(value))
        else:
            self._reference = {name: value.clone() for name, value in changing.items()}
        return self._policy.model.state_dict()

    def reference_values(self) -> list[torch.Tensor]:
        """Return the reference's own weights."""
        return [*self._reference.values()]

    def reference_state(self) -> dict[str, Any]:
        """Return the reference's own weights, without those that are frozen."""
        return dict(self._reference)

    def load_reference_state(self, state: dict[str, Any]) -> None:
        """Copy a state to the reference."""
        for name, value in self._reference.items():
            local(value).copy_(local(state[name]))

    def _put(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy values to the policy's trained weights and buffers."""
        for policy in self.policies:
            reshard(policy.model)  # an error may have left weights gathered
        for name, value in _changing(self._policy.model).items():
            local(value).copy_(local(values[name]))

    def full(self) -> dict[str, np.ndarray]:
        """Return copies of the full weights by name, on rank 0."""
        # On one rank the state holds the parameters themselves, which the next step changes.
        return {name: value.numpy().copy() for name, value in full_state(self._policy.model).items()}

    def in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return the full weights in parts, some of which are views of the weights themselves."""
        model = self._policy.model
        state: dict[str, Any] = get_model_state_dict(model)
        frozen = frozen_names(model) & state.keys()
        weights = ShardedWeights({name: state[name] for name in frozen} if frozen_only else state)
        return FullWeights(weights.outlines, weights.parts(), frozen)

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load these full weights."""
        load_full(self._policy.model, {name: torch.from_numpy(array) for name, array in weights.items()})

    def load_reference(self, folder: str) -> None:
        """Restore the reference from a checkpoint, with the frozen weights that it shares with the policy."""
        restore_reference(self._policy.model, self._reference, folder, "policy")

    def export(self, folder: Path) -> None:
        """Write the policy to a folder."""
        if state := full_state(self._policy.model):  # without copies: nothing is trained meanwhile
            self._policy.export({name: value.numpy() for name, value in state.items()}, folder)


def restore_reference(model: nn.Module, reference: Mapping[str, torch.Tensor], folder: str, learner: str) -> None:
    """Load a checkpoint of iteration 0 into a reference and into the model's frozen weights, in place; a collective.

    Args:
        model: Model of the policy.
        reference: Reference's own weights by their names in the model.
        folder: Folder of the checkpoint.
        learner: Name of the model's learner, under which the checkpoint has its weights.
    """
    names = _names_of(model)
    frozen = {n: v for n, v in get_model_state_dict(model).items() if names.get(n, n) not in reference}
    load_checkpoint({learner: {"model": {**frozen, **reference}}}, folder)
    set_model_state_dict(model, frozen, options=StateDictOptions(strict=False))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, without a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _changing(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained weights and the stored buffers by name; a tied weight has one name."""
    stored = model.state_dict().keys()
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    return trained | {name: value for name, value in model.named_buffers() if name in stored}


def _names_of(model: nn.Module) -> dict[str, str]:
    """Return the first name of each parameter by all of its names; a tied weight has several."""
    first = {id(value): name for name, value in model.named_parameters()}
    return {name: first[id(value)] for name, value in model.named_parameters(remove_duplicate=False)}


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Return all names of the parameters that training leaves alone; a tied weight has several."""
    parameters = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, value in parameters if not value.requires_grad)


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's full state on the CPU on rank 0, and an empty one on other ranks."""
    state: dict[str, Any] = get_model_state_dict(model, options=FULL)
    return state


def load_full(model: nn.Module, state: dict[str, Any], *, strict: bool = True) -> None:
    """Load a full state, which every rank must get; if not ``strict``, the state may be incomplete."""
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, strict=strict))
