"""Optimizer steps on a loss of tensors, whose gradients torch may compile."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from embodyflow.config.trainer import TrainerConfig
from embodyflow.training.parallel.sharding import require_finite
from embodyflow.training.steps.graphs import Function, clipped, compiled
from embodyflow.training.trained_model import TrainedModel, release_gradients

Metrics = dict[str, Tensor]
"""Scalars by name, and vectors with an entry for each transition."""

Loss = Callable[..., tuple[Tensor, Metrics]]
"""Maps tensors to a scalar to minimise, and to metrics. It depends on weights and on nothing else that changes."""


class GradientStep:
    """Optimizer steps of one or more models on the sum of their losses.

    Args:
        models: The models. The gradient of each is clipped on its own.
        loss: The sum of their losses; each model changes only one of them.
        config: Settings of a step.

    Attributes:
        compile_seconds: Seconds that compiling has taken so far, including loading from the cache.
    """

    def __init__(self, models: Sequence[TrainedModel], loss: Loss, config: TrainerConfig) -> None:
        self._models, self._loss, self._config = models, loss, config
        self._compiled: dict[tuple[torch.Size, ...], Function] = {}
        # Known after the first call: the parameters of each model that the loss depends on, and the metrics' names.
        self._parameters: list[list[nn.Parameter]] = []
        self._names: list[str] = []  # of the scalars, then of the vectors
        self.compile_seconds = 0.0

    def take(self, *columns: Tensor) -> tuple[Metrics, list[Tensor]]:
        """Take the step; return the loss's metrics, and the norm of each model's gradient before clipping.

        Args:
            columns: Arguments of the loss.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of its model and of those after it stay as they
                were.
        """
        *outputs, metrics = self._function(columns)(*columns)
        norms = []
        for model, parameters in zip(self._models, self._parameters, strict=True):
            gradients, norm, *outputs = outputs[: len(parameters)], *outputs[len(parameters) :]
            require_finite(norm)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            model.step()
            release_gradients(parameters)
            norms.append(norm)
        return dict(zip(self._names, [*metrics.unbind(), *outputs], strict=True)), norms

    def _gradients(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Return the clipped gradients of each model with their norm, the vectors, and the scalars, ``[M]``."""
        loss, metrics = self._loss(*columns)
        vectors = {name: each for name, each in metrics.items() if each.ndim}
        scalars = {name: each for name, each in metrics.items() if not each.ndim}
        self._names, self._parameters = [*scalars, *vectors], []
        every = [parameter for model in self._models for parameter in model.parameters]
        found = dict(zip(every, torch.autograd.grad(loss, every, allow_unused=True), strict=True))
        outputs = list[Tensor]()
        for model in self._models:
            trained = {each: gradient for each in model.parameters if (gradient := found[each]) is not None}
            self._parameters.append(list(trained))
            outputs += clipped(list(trained.values()), self._config.max_grad_norm)
        named = (each.detach() for each in vectors.values())
        return *outputs, *named, torch.stack([each.detach() for each in scalars.values()])

    def _function(self, columns: Sequence[Tensor]) -> Function:
        """Return the function of columns of these sizes, which the first call compiles if the configuration says so."""
        if not self._config.compile:
            return self._gradients
        sizes = tuple(column.shape for column in columns)
        if sizes not in self._compiled:
            began = time.perf_counter()
            self._compiled[sizes] = torch.no_grad()(compiled(make_fx(self._gradients)(*columns), columns))
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[sizes]
