"""FSDP2 sharding of a model, its precision and activation checkpointing, and gradient clipping."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from embodyflow.config.trainer import TrainerConfig
from embodyflow.training.parallel.mesh import Mesh


def shard(model: nn.Module, blocks: Sequence[nn.Module], mesh: Mesh, config: TrainerConfig) -> None:
    """Shard a model in place: each of its blocks, then the rest.

    With ``activation_checkpointing`` a block keeps only its inputs for the backward pass, which recomputes the block
    (Chen et al. 2016, arXiv:1604.06174). In bfloat16 the optimizer's weights and the sums of gradients stay float32.
    The model's outputs are cast to float32, so log-probs come from float32 logits.

    Args:
        model: Model in float32. Inputs of its blocks are cast to the lower precision, its own inputs are not. Its
            attribute ``forward_methods``, if any, names methods that are called from outside in place of ``forward``.
        blocks: Blocks of the model to shard one by one.
        mesh: Mesh of all ranks; FSDP shards over its columns.
        config: Precision and activation checkpointing.
    """
    if config.activation_checkpointing:
        for block in blocks:
            checkpoint(block)
    if config.precision == "float32":
        if mesh.num_ranks == 1:  # bit-identical without FSDP, whose overhead exceeds the step of a small model
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
    for method in getattr(model, "forward_methods", ()):
        register_fsdp_forward_method(model, method)


def reshard(model: nn.Module) -> None:
    """Release the weights outside of blocks, which stay gathered after a forward pass without a backward pass.

    While they are gathered, ``model.parameters()`` are not the sharded parameters, and an optimizer built from them
    would train nothing.
    """
    if isinstance(model, FSDPModule):
        model.reshard()


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float | None) -> float:
    """Clip the gradients of sharded parameters to a norm of at most ``limit``, if any; return the norm before clipping.

    Raises:
        FloatingPointError: The norm is NaN or inf; an optimizer step would ruin every weight.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients or any(isinstance(each, DTensor) for each in gradients):
        clipped: Any = nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        return require_finite(clipped.full_tensor() if isinstance(clipped, DTensor) else clipped)
    # The same arithmetic, without preparations of torch that take longer than the arithmetic of a small model.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    number = require_finite(norm)
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return number


def require_finite(norm: torch.Tensor) -> float:
    """Return a gradient norm as a number.

    Raises:
        FloatingPointError: The norm is NaN or inf; an optimizer step would ruin every weight.
    """
    number = float(norm)
    if not math.isfinite(number):
        raise FloatingPointError(f"the gradient norm is {number}: skipped the optimizer step")
    return number
