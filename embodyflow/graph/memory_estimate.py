"""Estimate the memory of models on each worker, to choose a placement before there is a cluster.

A parameter takes 16 bytes in training: 4 for weights, 4 for gradients and 8 for Adam's two moments, all in fp32. Mixed
precision with fp32 master weights takes the same. A parameter takes 4 bytes where the trainer only runs it, as in the
reference, or trains adapters; each parameter of an adapter adds 16 bytes (at rank 16 a 7B model has 0.6 % more
parameters). In rollouts the generation engine's dtype decides.

Activations take 34 bytes per token, hidden unit and layer (arXiv:2205.05198, section 4, without the attention matrix,
which flash attention does not store). The estimate excludes key-value caches and simulators.
"""

import re
from dataclasses import dataclass

from embodyflow.errors import ConfigError

TRAINING_BYTES = 16
FORWARD_BYTES = 4
ACTIVATION_BYTES = 34
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class ModelSize:
    """Size of a model.

    Attributes:
        num_params: Number of parameters.
        hidden_size, num_layers: Size of the transformer; 0 excludes activations.
        micro_batch_tokens: Tokens of one forward and backward pass on one worker.
    """

    num_params: float = 0.0
    hidden_size: int = 0
    num_layers: int = 0
    micro_batch_tokens: int = 0


def parse_num_params(text: object, where: str) -> float:
    """Parse ``"7B"``, ``"350M"`` or a plain number of parameters.

    Raises:
        ConfigError: The text is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMBT]?)", str(text).strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{where}: model_params={text!r}: must be a number, with K, M, B or T allowed, as in '7B'")
    return float(match[1]) * _SUFFIXES[match[2].upper()]


def training_bytes(
    model: ModelSize, num_ranks: int, model_parallel: int, bytes_per_param: int = TRAINING_BYTES
) -> float:
    """Return the bytes per worker of a model in training.

    Args:
        model: Size of the model.
        num_ranks: Workers of its group; parameters, gradients and moments are sharded over all of them.
        model_parallel: Tensor-parallel times pipeline-parallel ranks, which share the activations of a micro-batch.
        bytes_per_param: Bytes of weights, gradients and moments per parameter.
    """
    tokens = model.micro_batch_tokens * model.hidden_size * model.num_layers
    return bytes_per_param * model.num_params / num_ranks + ACTIVATION_BYTES * tokens / model_parallel
