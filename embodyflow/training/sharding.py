"""How a model lies on the ranks of a torch.distributed group: sharded by FSDP2, in which precision, what it keeps."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from embodyflow.config.trainer import TrainerConfig
from embodyflow.training.mesh import Mesh


def shard(model: nn.Module, blocks: Sequence[nn.Module], mesh: Mesh, config: TrainerConfig) -> None:
    """Shard a model in place: its blocks one by one, then the rest.

    With ``activation_checkpointing`` a block keeps its inputs alone for the backward pass, and is computed again in it
    (Chen et al. 2016, arXiv:1604.06174). In bfloat16 the weights that the optimizer sees stay float32, as do sums of
    gradients; what leaves the model is float32 again, so that log-probs are taken of float32 logits.

    Args:
        model: float32; what it is given is not cast, its blocks' inputs are.
        blocks: of it.
        mesh: of all ranks; FSDP is over its columns.
        config: says the precision and whether activations are computed again.
    """
    if config.activation_checkpointing:
        for block in blocks:
            checkpoint(block)
    if config.precision == "float32":
        if mesh.num_ranks == 1:  # the same numbers without FSDP's cost per step, several times that of a small model
            return
        inner = outer = MixedPrecisionPolicy()
    else:
        low = getattr(torch, config.precision)
        inner = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        outer = MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=torch.float32, output_dtype=torch.float32, cast_forward_inputs=False
        )
    for block in blocks:
        fully_shard(block, mesh=mesh.data, mp_policy=inner)
    fully_shard(model, mesh=mesh.data, mp_policy=outer)


def reshard(model: nn.Module) -> None:
    """Give back the weights that a forward pass without a backward pass leaves gathered, those outside of blocks.

    While they are, ``model.parameters()`` are not those that are trained: an optimizer of them would change nothing.
    """
    if isinstance(model, FSDPModule):
        model.reshard()


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float) -> float:
    """Scale the gradients of sharded parameters to a norm of at most ``limit``; return the norm that they had.

    Raises:
        FloatingPointError: it is not finite; an optimizer's step would leave no weight as it should be.
    """
    clipped: Any = nn.utils.clip_grad_norm_(parameters, limit)
    norm = float(clipped.full_tensor() if isinstance(clipped, DTensor) else clipped)
    if not math.isfinite(norm):
        raise FloatingPointError(f"the gradient's norm is {norm}: the step was not taken")
    return norm
