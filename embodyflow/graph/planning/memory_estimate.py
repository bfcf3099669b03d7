"""Estimate the memory of models on each worker, to choose a placement before there is a cluster.

A trained parameter takes 16 bytes: 4 for weights, 4 for gradients and 8 for Adam's two moments, all in fp32. Mixed
precision with fp32 master weights takes the same. A frozen parameter takes 4 bytes, and so does every parameter of a
model that the trainer only runs. In rollouts the generation engine's dtype decides. For N parameters, T of them
trained, on R ranks:

==================  ========================================================================================
policy              (4 N + 12 T) / R + the activations of a micro-batch
reference           4 T / R, since it shares the frozen weights; 0 with adapters; 4 N / R without a policy
critic              as the policy, with its own N and T
rollout             2 N or 4 N + the activations of a batch of decisions
==================  ========================================================================================

Activations are the caller's; :mod:`embodyflow.training.model_sizes` has those of a configured policy. The estimate
excludes key-value caches and simulators.
"""

import math
import re
from dataclasses import dataclass, replace

from embodyflow.errors import ConfigError

TRAINING_BYTES = 16
CHECKPOINT_BYTES = 12
FORWARD_BYTES = 4
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class ModelSize:
    """Size of a model.

    Attributes:
        num_params: Number of parameters, N.
        num_trained: Number of them that are trained, T, with adapters; ``None`` is all of them.
        training_activations: Bytes of the activations of one micro-batch.
        acting_activations: Bytes of the activations of one batch of decisions in rollouts.
    """

    num_params: float = 0.0
    num_trained: float | None = None
    training_activations: float = 0.0
    acting_activations: float = 0.0

    @property
    def trained(self) -> float:
        """T, trained parameters."""
        return self.num_params if self.num_trained is None else self.num_trained

    def resized(self, num_params: float) -> "ModelSize":
        """Return the model with another number of parameters, of which the same share is trained."""
        share = self.trained / self.num_params if self.num_params else 1.0
        return replace(self, num_params=num_params, num_trained=share * num_params)


def parse_num_params(text: object, where: str) -> float:
    """Parse ``"7B"``, ``"350M"`` or a plain number of parameters.

    Raises:
        ConfigError: The text is neither, or the number is 0 or infinite.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMBT]?)", str(text).strip(), re.IGNORECASE)
    number = float(match[1]) * _SUFFIXES[match[2].upper()] if match is not None else 0.0
    if not 0 < number < math.inf:
        raise ConfigError(
            f"{where}: model_params={text!r}: must be a number above 0, with K, M, B or T allowed, as in '7B'"
        )
    return number


def checkpoint_bytes(model: ModelSize) -> float:
    """Return the bytes of a model in a checkpoint: trained weights in fp32, and Adam's two moments."""
    return CHECKPOINT_BYTES * model.trained


def training_bytes(model: ModelSize, num_ranks: int, model_parallel: int) -> float:
    """Return the bytes per worker of a model in training.

    Args:
        model: Size of the model.
        num_ranks: Workers of its group; parameters, gradients and moments are sharded over all of them.
        model_parallel: Tensor-parallel times pipeline-parallel ranks, which share the activations of a micro-batch.
    """
    states = FORWARD_BYTES * model.num_params + (TRAINING_BYTES - FORWARD_BYTES) * model.trained
    return states / num_ranks + model.training_activations / model_parallel
