"""Root-mean-square normalisation with a gradient written by hand (Zhang & Sennrich, 2019, arXiv:1910.07467).

transformers composes it from operations whose automatic gradient takes twice as many, each a pass over memory. This
gradient takes half the passes.
"""

from functools import cache
from typing import Any

import torch
from torch import nn

NAMES = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
"""Classes of transformers that compute exactly weight · x / √(mean(x²) + ε)."""


def use_in(model: nn.Module) -> None:
    """Make the normalisations of a transformers model compute by this module, in float32; names and weights stay."""
    for module in model.modules():
        if type(module).__name__ in NAMES and not isinstance(module, _RMSNorm):
            kind: Any = type(module)
            module.__class__ = _faster(kind)


@cache
def _faster(kind: Any) -> Any:
    return type(kind.__name__, (_RMSNorm, kind), {})


class _RMSNorm(nn.Module):
    """A class of :data:`NAMES`, faster in float32."""

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
        # With r = 1 / √(mean(x²) + ε), n = r·x and g the gradient of the outputs w·n, the gradient of w is Σ g·n and
        # that of x is r·(g·w − n·mean(g·w·n)).
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
