"""Optimizer steps whose forward passes, losses, gradients and clipping are one graph.

A step of a small network takes most of its time between kernels: in Python modules, in the losses and in autograd. So
the objectives are traced once for each size of a mini-batch to a graph of plain operations on tensors, from the rows to
the clipped gradients. TorchScript's interpreter runs the operations of eager steps without Python, with the same bits.
With ``trainer.compile`` TorchInductor compiles the graph to machine code. The optimizer's step stays torch's fused
AdamW.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.jit._fuser import optimized_execution

from embodyflow.algorithms.masked import Metrics
from embodyflow.config.trainer import TrainerConfig
from embodyflow.process.tracing import span
from embodyflow.training.objectives import Objective
from embodyflow.training.parallel.sharding import require_finite
from embodyflow.training.steps.graphs import Function, clipped, compiled
from embodyflow.training.steps.steps import Steps, Totals
from embodyflow.training.trained_model import TrainedModel, release_gradients

MOST_SIZES = 8
"""Number of sizes of a mini-batch that are traced. A batch of environments that resets itself has ever new ones."""


class _Step(NamedTuple):
    """The function of a step and its interface.

    Attributes:
        function: Maps columns to clipped gradients, their norm and the metrics, float64 [M, 2].
        columns: Names of the columns that it takes.
        metrics: Names of the metrics.
        parameters: Parameters that have a gradient.
    """

    function: Function
    columns: Sequence[str]
    metrics: Sequence[str]
    parameters: Sequence[nn.Parameter]


class TracedSteps:
    """Optimizer steps of some models on one rank, each on a whole mini-batch.

    See :class:`~embodyflow.training.steps.steps.Steps`.

    Args:
        models: Models that take the same steps.
        objectives: Losses; a step minimises their sum. Their terms must not change between steps.
        config: Settings of a step.
        eager: Steps by autograd, with the same bits, on mini-batches of further sizes. Compiled steps have other last
            bits, so all sizes are compiled.
    """

    def __init__(
        self, models: Sequence[TrainedModel], objectives: Sequence[Objective], config: TrainerConfig, eager: Steps
    ) -> None:
        self._models, self._objectives, self._config, self._eager = models, objectives, config, eager
        self._steps: dict[int, _Step] = {}
        self.compile_seconds = 0.0

    def take(self, rows: TensorDict, cuts: Sequence[slice], totals: Totals) -> list[tuple[float, int]]:
        """Take an optimizer step on each mini-batch; return gradient norms and numbers of micro-batches.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights stay as they were before the step.
            RuntimeError: The objectives compute something else on the same rows a second time.
        """
        taken, metrics = list[tuple[float, int]](), defaultdict[tuple[str, ...], list[Tensor]](list)
        columns: dict[str, Tensor] = rows.to_dict(convert_tensors=False)  # whose slices cost less than the rows'
        for cut in cuts:
            step = self._step_for(columns, cut)
            if step is None:
                taken += self._eager.take(rows, [cut], totals)
                continue
            with torch.no_grad(), span("micro-batch", "training", rows=cut.stop - cut.start):
                *gradients, norm, measured = step.function(*(columns[name][cut] for name in step.columns))
            metrics[tuple(step.metrics)].append(measured)
            taken.append((require_finite(norm), 1))
            self._apply(step.parameters, gradients)
        for names, each in metrics.items():
            for name, (total, count) in zip(names, torch.stack(each).sum(0), strict=True):
                totals[name].append((total, count))
        return taken

    def _apply(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        with span("optimizer step", "training"):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            for model in self._models:
                model.step()
            release_gradients(parameters)

    def _step_for(self, columns: Mapping[str, Tensor], cut: slice) -> _Step | None:
        """Return the step for mini-batches of this size, which the first call traces; ``None`` takes an eager step."""
        size = cut.stop - cut.start
        if size not in self._steps:
            if len(self._steps) >= MOST_SIZES and not self._config.compile:
                return None
            self._steps[size] = self._trace({name: column[cut] for name, column in columns.items()}, size)
        return self._steps[size]

    def _trace(self, columns: Mapping[str, Tensor], size: int) -> _Step:
        names, metrics, parameters = sorted(columns), list[str](), list[nn.Parameter]()

        def gradients(*given: Tensor) -> tuple[Tensor, ...]:
            loss, measured = self._loss(TensorDict(dict(zip(names, given, strict=True)), [size]))
            metrics[:] = measured
            pairs = [torch.stack([number.double() for number in pair]) for pair in measured.values()]
            found = self._gradients(loss)
            parameters[:] = found
            return *clipped(list(found.values()), self._config.max_grad_norm), torch.stack(pairs)

        examples = [columns[name] for name in names]
        # The graph holds the parameters and buffers themselves, so it sees what changes them.
        graph = make_fx(gradients)(*examples)
        read = _without_unused_inputs(graph, names)
        needed = [columns[name] for name in read]
        if self._config.compile:
            began = time.perf_counter()
            function = compiled(graph, needed)
            self.compile_seconds += time.perf_counter() - began
        else:
            function = _interpreted(graph, needed)
            _require_equal(function(*needed), gradients(*examples))
        return _Step(function, read, metrics, parameters)

    def _loss(self, rows: TensorDict) -> tuple[Tensor, Metrics]:
        """Return the sum of the losses of a mini-batch, and the metrics of all."""
        metrics: Metrics = {}
        losses = []
        for objective in self._objectives:
            loss, measured = objective.loss(rows)
            losses.append(loss)
            metrics |= measured
        return sum(losses[1:], losses[0]), metrics

    def _gradients(self, loss: Tensor) -> dict[nn.Parameter, Tensor]:
        """Return the gradients of the parameters that the loss depends on."""
        parameters = [parameter for model in self._models for parameter in model.parameters]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return {each: gradient for each, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


def _without_unused_inputs(graph: GraphModule, names: Sequence[str]) -> list[str]:
    """Remove the inputs that no node of a graph reads; return the names of the others."""
    inputs = graph.graph.find_nodes(op="placeholder")
    read = [name for name, node in zip(names, inputs, strict=True) if node.users]
    for node in inputs:
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return read


def _interpreted(graph: GraphModule, examples: Sequence[Tensor]) -> Function:
    """Return the graph as a function that runs its operations one by one, as autograd does."""
    with torch.no_grad(), warnings.catch_warnings():
        # torch recommends torch.compile instead, which needs a C++ compiler and seconds, and changes the last bits.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(graph.forward, tuple(examples), check_trace=False)

    def run(*columns: Tensor) -> tuple[Tensor, ...]:
        with optimized_execution(False):  # which would fuse operations after the first calls
            results: tuple[Tensor, ...] = traced(*columns)
        return results

    return run


def _require_equal(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    if all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(found, expected, strict=True)):
        return
    raise RuntimeError(
        "an optimizer step computes something else when it is traced: the evaluate of the policy or its critic draws "
        "random numbers, or decides by values; set compiles = False in the policy's configuration"
    )
