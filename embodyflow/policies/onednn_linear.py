"""Linear layers whose matrix products are oneDNN's, on an AMD processor and in float32.

PyTorch gives a float32 product to MKL, which is far from what AMD's processors can do. oneDNN, which PyTorch has on
board too, does the same product more than twice as fast on an EPYC with 512-bit vectors (family 26, one thread: 230
instead of 100 GFLOP/s at 2,400 × 128 × 384). On an Intel Xeon (family 6, model 167) it is MKL that is faster: 194
instead of 188 there, and 179 instead of 139 for the gradient of the weights. Others were not measured, and are left to
PyTorch.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

MIN_PRODUCTS = 2**21
"""Multiplications of a matrix product from which on oneDNN is taken: a call costs it some 15 µs more than MKL's."""

IS_AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this build of PyTorch has it."""


CPU_INFO = Path("/proc/cpuinfo")
"""Where Linux says who made the processor."""


def is_faster() -> bool:
    """Say whether PyTorch's own products are slower, by who made the processor.

    Timed, another process of the same run might decide otherwise, and its numbers differ in the last bits.
    """
    return IS_AVAILABLE and CPU_INFO.exists() and "AuthenticAMD" in CPU_INFO.read_text()


IS_FASTER = is_faster()
"""Whether it is worth it on this machine."""


def use_in(model: nn.Module) -> None:
    """Let the linear layers of a model compute by :func:`linear`.

    Names and weights stay, and a layer is an ``nn.Linear`` as before; on a GPU and in other precisions it computes as
    one too.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDNNLinear


class OneDNNLinear(nn.Linear):
    """A linear layer; see :func:`use_in`."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``inputs`` [..., I] times the weight [O, I] transposed, plus the bias."""
        return linear(inputs, self.weight, self.bias)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return what :func:`torch.nn.functional.linear` does, by oneDNN where it is worth it."""
    # A subclass is made of several processes' parts, which oneDNN knows nothing of.
    is_plain = type(inputs) is torch.Tensor and inputs.dtype == weight.dtype == torch.float32
    is_plain = is_plain and inputs.device.type == "cpu"
    if not (IS_FASTER and is_plain) or inputs.numel() * len(weight) < MIN_PRODUCTS:
        return functional.linear(inputs, weight, bias)
    if torch.is_grad_enabled():
        outputs: torch.Tensor = _Linear.apply(inputs, weight, bias)
        return outputs
    return _product(inputs, weight, bias)


class _Linear(torch.autograd.Function):
    """:func:`torch.nn.functional.linear`."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            _product(gradient, weight.t()) if of_inputs else None,
            _product_of_columns(rows, inputs.reshape(-1, inputs.shape[-1])) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``left @ right.T + bias``, float32 ``[..., O]``, of ``[..., I]`` and ``[O, I]``, transposed ones too."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


def _product_of_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left.T @ right``, float32 ``[O, I]``, of ``[n, O]`` and ``[n, I]``."""
    # oneDNN copies a first factor that is transposed: let it be the narrower one.
    if left.shape[1] <= right.shape[1]:
        return _product(left.t(), right.t())
    return _product(right.t(), left.t()).t().contiguous()
