"""Optimizer steps by autograd, on any number of ranks and micro-batches."""

from collections.abc import Sequence

from tensordict import TensorDict

from embodyflow.config.trainer import TrainerConfig
from embodyflow.process.tracing import span
from embodyflow.training.objectives import Objective
from embodyflow.training.parallel.mesh import Mesh
from embodyflow.training.parallel.sharding import clip_gradients
from embodyflow.training.steps.micro_batches import micro_batches
from embodyflow.training.steps.steps import Totals
from embodyflow.training.trained_model import TrainedModel, release_gradients


class EagerSteps:
    """Optimizer steps of some models; see :class:`~embodyflow.training.steps.steps.Steps`.

    Args:
        models: Models that take the same steps.
        objectives: Losses; a step minimises their sum.
        config: Settings of a step.
        mesh: Mesh that the models are sharded over.
    """

    def __init__(
        self, models: Sequence[TrainedModel], objectives: Sequence[Objective], config: TrainerConfig, mesh: Mesh
    ) -> None:
        self._models, self._objectives, self._config, self._mesh = models, objectives, config, mesh
        self.compile_seconds = 0.0

    def take(self, rows: TensorDict, cuts: Sequence[slice], totals: Totals) -> list[tuple[float, int]]:
        """Take an optimizer step on each mini-batch; return gradient norms and numbers of micro-batches.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights stay as they were before the step.
        """
        return [self._take_one(rows[cut], totals) for cut in cuts]

    def _take_one(self, rows: TensorDict, totals: Totals) -> tuple[float, int]:
        parameters = [parameter for model in self._models for parameter in model.parameters]
        release_gradients(parameters)  # a step that failed leaves some
        cuts = micro_batches(rows, self._config, self._mesh)
        for cut in cuts:
            losses = []
            with span("micro-batch", "training", rows=cut.stop - cut.start):
                for objective in self._objectives:
                    loss, metrics = objective.loss(rows[cut] if len(cuts) > 1 else rows)
                    losses.append(loss)
                    for name, pair in metrics.items():
                        totals[name].append(pair)
                # FSDP averages gradients over the parts of the batch; the loss needs their sum.
                (sum(losses[1:], losses[0]) * self._mesh.num_parts).backward()
        with span("optimizer step", "training"):
            norm = clip_gradients(parameters, self._config.max_grad_norm)
            for model in self._models:
                model.step()
        release_gradients(parameters)  # the passes until the next step need their memory
        return norm, len(cuts)
