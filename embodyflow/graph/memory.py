"""How much memory a model takes on each worker: an estimate, to choose a placement before there is a cluster.

Per parameter: 16 bytes to train it (weights 4, gradients 4, Adam's two moments 8, in fp32; mixed precision,
with 16-bit weights and gradients beside fp32 master weights, comes to the same), 4 where the trainer only runs it, as
the reference, or trains adapters alone, whose 16 bytes for each of theirs come on top (at rank 16 a 7B model has 0.6 %
more parameters); what it takes where rows are rolled out says the generation engine's dtype.
Activations: 34 bytes for each token, hidden unit and layer (arXiv:2205.05198, section 4, without the
attention matrix, which flash attention does not store). Key-value caches and simulators come on top.
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
    """What the estimate needs to know of a model.

    Attributes:
        num_params: parameters.
        hidden_size, num_layers: of its transformer; 0 leaves activations out.
        micro_batch_tokens: tokens of one forward and backward pass on one worker.
    """

    num_params: float = 0.0
    hidden_size: int = 0
    num_layers: int = 0
    micro_batch_tokens: int = 0


def parse_num_params(text: object, where: str) -> float:
    """Read ``"7B"``, ``"350M"`` or a plain number of parameters.

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([KMBT]?)", str(text).strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{where}: model_params={text!r}: must be a number, or one with K, M, B or T like '7B'")
    return float(match[1]) * _SUFFIXES[match[2].upper()]


def training_bytes(
    model: ModelSize, num_ranks: int, model_parallel: int, bytes_per_param: int = TRAINING_BYTES
) -> float:
    """Return the bytes per worker of a model in training.

    Args:
        model: its size.
        num_ranks: workers of its group; parameters, gradients and moments are sharded over all of them.
        model_parallel: tensor times pipeline ranks, which share the activations of a micro-batch.
        bytes_per_param: of weights, gradients and moments.
    """
    tokens = model.micro_batch_tokens * model.hidden_size * model.num_layers
    return bytes_per_param * model.num_params / num_ranks + ACTIVATION_BYTES * tokens / model_parallel
