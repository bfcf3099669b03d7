"""Root-mean-square normalisation with a gradient of its own.

transformers writes it as a chain of operations, whose gradient is one of twice as many, each a pass over memory. Here
the gradient is written out (Zhang & Sennrich 2019, arXiv:1910.07467), in half the passes.
"""

from functools import cache
from typing import Any

import torch
from torch import nn

NAMES = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
"""Classes of transformers that compute weight · x / √(mean(x²) + ε) and nothing else."""


def use_in(model: nn.Module) -> None:
    """Let the normalisations of a transformers model compute as here, in float32; names and weights stay."""
    for module in model.modules():
        if type(module).__name__ in NAMES and not isinstance(module, _RMSNorm):
            kind: Any = type(module)
            module.__class__ = _faster(kind)


@cache
def _faster(kind: Any) -> Any:
    return type(kind.__name__, (_RMSNorm, kind), {})


class _RMSNorm(nn.Module):
    """What a class of :data:`NAMES` does in float32."""

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise float32 ``[..., D]``."""
        if not hidden_states.dtype == self.weight.dtype == torch.float32:
            plain: torch.Tensor = super().forward(hidden_states)
            return plain
        if torch.is_grad_enabled():
            outputs: torch.Tensor = _Normalise.apply(hidden_states, self.weight, self.variance_epsilon)
            return outputs
        return _normalise(hidden_states, self.weight, self.variance_epsilon)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.epsilon = epsilon
        return _normalise(inputs, weight, epsilon)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        # With r = 1 / √(mean(x²) + ε), n = r·x and g the gradient of the outputs w·n: of w it is Σ g·n, of x it is
        # r·(g·w − n·mean(g·w·n)).
        inputs, weight = ctx.saved_tensors
        norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        rate = norm.square_().div_(inputs.shape[-1]).add_(ctx.epsilon).rsqrt_()
        normal = inputs * rate
        products = (gradient * normal).flatten(0, -2)
        mean = (products @ weight).view(rate.shape).div_(inputs.shape[-1])
        of_inputs = normal.mul_(mean.neg_()).addcmul_(gradient, weight).mul_(rate)
        return of_inputs, products.sum(0) if ctx.needs_input_grad[1] else None, None


def _normalise(inputs: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return torch.rms_norm(inputs, weight.shape, weight, epsilon)
