"""Linear layers that multiply by oneDNN, in float32 on AMD processors from Zen 5 on.

PyTorch multiplies float32 matrices by MKL, which does not use the 512-bit vectors of AMD processors. PyTorch also
contains oneDNN, which does. Measured on one thread, at 2,400 × 128 × 384 unless said otherwise:

- AMD EPYC with units of 512 bits (Zen 5, family 26): oneDNN reaches 230 GFLOP/s, MKL 100.
- AMD EPYC that splits vectors of 512 bits into two halves (Zen 4, family 25, model 17): oneDNN reaches 99, MKL 92. At
  64 × 128 × 256 these are 75 and 92, and MKL takes 0.55 of oneDNN's time for the gradient of the weights.
- AMD EPYC with vectors of 256 bits (Zen 3, family 25, model 1): oneDNN reaches 72, MKL 80. At 64 × 128 × 256 these are
  42 and 59, and MKL takes 0.6 of oneDNN's time for the gradient of the weights.
- Intel Xeon (family 6, model 167): oneDNN reaches 188, MKL 194. For the gradient of the weights these are 139 and 179.

Other processors were not measured and keep PyTorch's choice.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

MIN_PRODUCTS = 2**21
"""Least number of multiplications for which oneDNN is used: its calls cost some 15 µs more than MKL's."""

BLOCK = 2048
"""Rows of a block of a large product that is summed in place."""

OUTPUTS = 8192
"""Outputs of a block of a large product that is written to memory of an earlier one."""

IS_AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this build of PyTorch contains oneDNN's linear layer."""

CPU_INFO = Path("/proc/cpuinfo")
"""File in which Linux names the maker of the processor and its instructions."""


ZEN_5 = 26
"""First family of AMD processors that compute 512 bits at once."""


def is_faster() -> bool:
    """Return True if oneDNN is the faster choice, by the maker and the family of the processor.

    A measurement could differ between processes of one run, and their results would then differ in the last bits.
    """
    if not IS_AVAILABLE or not CPU_INFO.exists():
        return False
    facts = dict(re.findall(r"^(vendor_id|cpu family|flags)\s*: (.*)$", CPU_INFO.read_text(), re.MULTILINE))
    is_wide = "avx512f" in facts.get("flags", "").split()
    return facts.get("vendor_id") == "AuthenticAMD" and int(facts.get("cpu family", 0)) >= ZEN_5 and is_wide


IS_FASTER = is_faster()
"""Whether oneDNN is the faster choice on this machine."""


def use_in(model: nn.Module) -> None:
    """Make the linear layers of a model compute by :func:`linear`.

    Names and weights stay. A layer remains an ``nn.Linear``, and computes like one on a GPU and in other precisions.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDNNLinear


class OneDNNLinear(nn.Linear):
    """Linear layer that computes by :func:`linear`; see :func:`use_in`."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``inputs @ weight.T + bias``, [..., O], for inputs [..., I]."""
        return linear(inputs, self.weight, self.bias)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute :func:`torch.nn.functional.linear`, by oneDNN where that is faster."""
    if not _is_for_onednn(inputs, weight) or inputs.numel() * len(weight) < MIN_PRODUCTS:
        return functional.linear(inputs, weight, bias)
    if torch.is_grad_enabled():
        outputs: torch.Tensor = _Linear.apply(inputs, weight, bias)
        return outputs
    return _product(inputs, weight, bias)


def linear_of_any_size(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute a linear layer without gradient, by the same library for every number of rows.

    The two libraries add products in another order, so by :func:`linear` a row has other last bits among more rows.
    """
    if _is_for_onednn(inputs, weight):
        return _product(inputs, weight, bias)
    return functional.linear(inputs, weight, bias)


def linear_into(memory: torch.Tensor | None, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the bits of :func:`linear_of_any_size`, float32 ``[n, O]``, in memory that has served before.

    oneDNN returns a product in new memory, which the kernel hands out page by page. For 128 rows and 262,144 outputs
    that takes a fifth of the time, so the product comes in blocks of outputs that are copied while they are in the
    cache. Another library than oneDNN gets no blocks, and returns new memory.

    Args:
        memory: Product of an earlier call, ``[at least n, O]``, which is overwritten; ``None`` takes new memory.
        inputs: Factors ``[n, I]``.
        weight: Weight of the layer, ``[O, I]``.
    """
    if not _is_for_onednn(inputs, weight):
        return functional.linear(inputs, weight)
    outputs = inputs.new_empty((len(inputs), len(weight))) if memory is None else memory[: len(inputs)]
    for start in range(0, len(weight), OUTPUTS):
        outputs[:, start : start + OUTPUTS] = _product(inputs, weight[start : start + OUTPUTS])
    return outputs


def add_product_of_columns(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add ``left.T @ right``, ``[O, I]``, to ``total`` in place, for ``[n, O]`` and ``[n, I]`` with a large O.

    oneDNN returns a product in new memory. For a large one the kernel's zeroing of that memory takes as long as the
    multiplications, so the product comes in blocks that are added while they are in the cache.
    """
    if not _is_for_onednn(left, right):
        total.addmm_(left.t(), right)
        return
    columns = right.t().contiguous()
    for start in range(0, len(total), BLOCK):
        block = slice(start, start + BLOCK)
        total[block] += _product(left[:, block].t().contiguous(), columns)


def _is_for_onednn(inputs: torch.Tensor, weight: torch.Tensor) -> bool:
    if not IS_FASTER:
        return False
    # A subclass, such as DTensor, is spread over processes, which oneDNN does not handle.
    is_plain = type(inputs) is torch.Tensor and inputs.dtype == weight.dtype == torch.float32
    return is_plain and inputs.device.type == "cpu"


class _Linear(torch.autograd.Function):
    """:func:`torch.nn.functional.linear` by oneDNN, with its gradient."""

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
    """Return ``left @ right.T + bias``, float32 ``[..., O]``, for ``[..., I]`` and ``[O, I]``, transposed or not."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


def _product_of_columns(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left.T @ right``, float32 ``[O, I]``, for ``[n, O]`` and ``[n, I]``."""
    # oneDNN copies a first factor that is transposed, so the narrower one comes first.
    if left.shape[1] <= right.shape[1]:
        return _product(left.t(), right.t())
    return _product(right.t(), left.t()).t().contiguous()
