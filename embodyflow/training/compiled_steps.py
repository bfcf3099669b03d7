"""Optimizer steps whose forward passes, losses, gradients and clipping are one function compiled by torch.

A step of a small network takes most of its time between kernels: in Python, in autograd and in the dispatcher. The
objectives are traced once for each shape of a mini-batch to a graph of plain tensors, from the rows to the clipped
gradients, and TorchInductor compiles the graph to machine code. The optimizer's step stays torch's fused AdamW.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch.fx.experimental.proxy_tensor import make_fx

from embodyflow.process.compiler import use_compiler
from embodyflow.process.tracing import span
from embodyflow.training.objectives import Objective
from embodyflow.training.parallel.sharding import require_finite
from embodyflow.training.trained_model import TrainedModel, release_gradients

Totals = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]
"""The ``(sum, count)`` of each micro-batch by metric."""

Compiled = Callable[..., tuple[torch.Tensor, ...]]


class _Step(NamedTuple):
    """A compiled function and its interface.

    Attributes:
        function: Function of the columns that returns clipped gradients, their norm and the metrics, float64 [M, 2].
        columns: Names of the columns that it takes.
        metrics: Names of the metrics.
    """

    function: Compiled
    columns: Sequence[str]
    metrics: Sequence[str]


class CompiledSteps:
    """Optimizer steps of some models on one rank, each on a whole mini-batch.

    Args:
        models: Models that take the same steps.
        objectives: Loss of each model; a step minimises their sum. Its terms must not change between steps.
        max_grad_norm: Norm that the gradients of all models are clipped to; ``None`` clips none.

    Attributes:
        seconds: Seconds that compiling has taken, including loading from the cache.
    """

    def __init__(
        self, models: Sequence[TrainedModel], objectives: Sequence[Objective], max_grad_norm: float | None
    ) -> None:
        self._models, self._objectives, self._limit = models, objectives, max_grad_norm
        self._steps: dict[int, _Step] = {}
        self.seconds = 0.0

    def take(self, rows: TensorDict, cuts: Sequence[slice], totals: Totals) -> list[float]:
        """Take an optimizer step on each mini-batch; return the gradient norms.

        Args:
            rows: Prepared rows of all mini-batches.
            cuts: Rows of each mini-batch.
            totals: Metrics, to which those of the steps are added.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights stay as they were before the step.
        """
        norms, metrics = list[float](), defaultdict[tuple[str, ...], list[torch.Tensor]](list)
        parameters = [parameter for model in self._models for parameter in model.parameters]
        for cut in cuts:
            step = self._step_for(rows, cut)
            with torch.no_grad(), span("micro-batch", "training", rows=cut.stop - cut.start):
                *gradients, norm, measured = step.function(*(rows[name][cut] for name in step.columns))
            metrics[tuple(step.metrics)].append(measured)
            norms.append(require_finite(norm))
            with span("optimizer step", "training"):
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                for model in self._models:
                    model.step()
                release_gradients(parameters)
        for names, each in metrics.items():
            for name, (total, count) in zip(names, torch.stack(each).sum(0), strict=True):
                totals[name].append((total, count))
        return norms

    def _step_for(self, rows: TensorDict, cut: slice) -> _Step:
        """Return the step for mini-batches of this size, which the first call traces and compiles."""
        size = cut.stop - cut.start
        if size not in self._steps:
            began = time.perf_counter()
            self._steps[size] = self._compile(rows[cut])
            self.seconds += time.perf_counter() - began
        return self._steps[size]

    def _compile(self, rows: TensorDict) -> _Step:
        use_compiler()
        names = sorted(str(name) for name in rows.keys())  # noqa: SIM118, since a TensorDict iterates over rows
        metrics: list[str] = []

        def gradients(*columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
            batch = TensorDict(dict(zip(names, columns, strict=True)), [len(rows)])
            clipped, norm, measured = self._gradients(batch)
            metrics.extend(measured)
            pairs = [torch.stack([number.double() for number in pair]) for pair in measured.values()]
            return *clipped, norm, torch.stack(pairs)

        # The graph holds the parameters and buffers themselves, so it sees what changes them.
        graph = make_fx(gradients)(*(rows[name] for name in names))
        inputs = graph.graph.find_nodes(op="placeholder")
        columns = [name for name, node in zip(names, inputs, strict=True) if node.users]
        for node in inputs:
            if not node.users:
                graph.graph.erase_node(node)
        graph.recompile()
        # Guards would check in each call what the key of this step and the graph's own parameters ensure.
        compiled = torch.compile(
            graph.forward,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        with torch.no_grad():
            compiled(*(rows[name] for name in columns))  # torch compiles in the first call
        return _Step(compiled, columns, metrics)

    def _gradients(
        self, rows: TensorDict
    ) -> tuple[list[torch.Tensor], torch.Tensor, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
        """Return clipped gradients of all parameters, their norm before clipping, and the metrics of a mini-batch."""
        metrics: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        losses = []
        for objective in self._objectives:
            loss, measured = objective.loss(rows)
            losses.append(loss)
            metrics |= measured
        parameters = [parameter for model in self._models for parameter in model.parameters]
        gradients = torch.autograd.grad(sum(losses[1:], losses[0]), parameters)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            if self._limit is None:
                return list(gradients), norm, metrics
            factor = (self._limit / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
            return [each * factor for each in gradients], norm, metrics
