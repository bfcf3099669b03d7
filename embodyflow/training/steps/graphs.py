"""Gradients as functions of tensors, which torch compiles to machine code."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from embodyflow.process.compiler import use_compiler

Function = Callable[..., tuple[Tensor, ...]]
"""Function of tensors that returns tensors, gradients among them."""


def clipped(gradients: list[Tensor], limit: float | None) -> list[Tensor]:
    """Return gradients clipped to a norm, by the arithmetic of eager steps, and their norm before.

    Args:
        gradients: Gradients of one or more models.
        limit: Largest norm of all together; ``None`` clips nothing.
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is None:
        return [*gradients, norm]
    return [*torch._foreach_mul(gradients, (limit / (norm + 1e-6)).clamp(max=1.0)), norm]


def compiled(graph: GraphModule, examples: Sequence[Tensor]) -> Function:
    """Return a graph as machine code for tensors of these sizes, or load it from the cache."""
    use_compiler()
    # Guards would check in each call what the caller and the graph's own parameters ensure.
    function: Function = torch.compile(
        graph.forward,
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )
    with torch.no_grad():
        function(*examples)  # torch compiles in the first call
    return function
