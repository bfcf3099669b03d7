"""Optimizer steps of a model that FSDP2 shards over the ranks of a torch.distributed group.

Every mean is over the *global* mini-batch: losses are weighted by counts over all ranks and micro-batches, so the
gradient does not depend on how the rows are split.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

from embodyflow.config.trainer import OptimizerConfig, TrainerConfig
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.policies.running_statistics.return_scale import count_returns, return_scale_of
from embodyflow.policies.running_statistics.running_normalizer import count_states, normalizers_of
from embodyflow.seeding import derive_seed
from embodyflow.training.objectives import Objective
from embodyflow.training.parallel.mesh import Mesh
from embodyflow.training.steps.eager_steps import EagerSteps
from embodyflow.training.steps.micro_batches import draw_minibatches
from embodyflow.training.steps.steps import Steps, Totals
from embodyflow.training.steps.traced_steps import TracedSteps
from embodyflow.training.trained_model import TrainedModel


class Learner(TrainedModel):
    """A sharded model with its AdamW optimizer.

    Args:
        model: Sharded model.
        objective: Loss to minimise.
        area: Prefix of its metrics, as in ``<area>/grad_norm``.
        optimizer: Learning rate and number of epochs.
        config: All other settings of a step.
        mesh: Mesh that the model is sharded over.
        traces_steps: Whether the whole step of a mini-batch can be traced to a graph; it has the same result.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        area: str,
        optimizer: OptimizerConfig,
        config: TrainerConfig,
        mesh: Mesh,
        *,
        traces_steps: bool = False,
    ) -> None:
        super().__init__(model, optimizer.learning_rate, config)
        self._objective, self._area, self._settings = objective, area, optimizer
        self._mesh, self._traces_steps = mesh, traces_steps
        self._steps_by_learners: dict[tuple[Learner, ...], Steps] = {}

    def train(
        self,
        batch: TensorDict,
        *,
        positions: np.ndarray,
        total_rows: int,
        seed: int,
        rate: float = 1.0,
        joint: Sequence["Learner"] = (),
        objective: Objective | None = None,
    ) -> dict[str, Metric]:
        """Train on the rows: ``epochs`` passes of ``num_minibatches`` optimizer steps.

        Each pass assigns rows to mini-batches by their positions in the whole batch, so the mini-batches do not depend
        on the number of ranks. After the last step, the states and running returns of the rows enter the running
        statistics of the models that have them, once whatever the number of passes.

        Args:
            batch: This rank's rows, with the columns that the objective reads, ``state`` if a model normalises it, and
                ``running_returns`` if a model scales rewards.
            positions: Positions of these rows in the whole batch, int64 ``[N]``.
            total_rows: Number of rows in the whole batch; with 0 the call trains nothing.
            seed: Seed for drawing the mini-batches.
            rate: Fraction of the full learning rate.
            joint: Learners of other models that take the same steps, as if all minimised the sum of their losses:
                one gradient norm over all models is clipped.
            objective: Sum of the losses of all these models, where one forward pass gives it; ``None`` means that each
                model computes its own.

        Raises:
            FloatingPointError: The loss or a gradient is NaN or inf; the weights stay as they were before the step.
        """
        num_steps = f"{self._area}/optimizer_steps"
        if total_rows == 0:
            return {num_steps: last(0)}
        learners = (self, *joint)
        objectives = [learner._objective for learner in learners] if objective is None else [objective]
        for learner in learners:
            learner.set_rate(rate)
        totals: Totals = defaultdict(list)
        steps = self._steps_with(joint, objectives)
        compiling = steps.compile_seconds
        taken = list[tuple[float, int]]()
        for epoch in range(self._settings.epochs):
            rows, cuts = self._shuffled(batch, positions, total_rows, derive_seed(seed, epoch))
            for each in objectives:
                rows = each.prepare(rows, cuts, total_rows, self._mesh.sum)
            taken += steps.take(rows, cuts, totals)
        for learner in learners:
            learner._update_statistics(batch)
        metrics = {name: _merge_mean(pairs) for name, pairs in totals.items()}
        metrics[f"perf/{self._area}_micro_batches"] = last(sum(passes for _, passes in taken))
        if self._config.compile:
            metrics[f"perf/{self._area}_compile_seconds"] = last(steps.compile_seconds - compiling)
        return metrics | {
            f"{self._area}/grad_norm": last(float(np.mean([norm for norm, _ in taken]))),
            num_steps: last(len(taken)),
        }

    def _update_statistics(self, batch: TensorDict) -> None:
        """Let the rows enter the running statistics of the model, if it has any.

        Log-probs and values of the next iteration's rows are the first to use those of states.
        """
        if normalizers_of(self.model):
            count_states(self.model, batch["state"], batch["loss_mask"].any(-1), self._mesh.sum)
        if return_scale_of(self.model) is not None:
            count_returns(self.model, batch["running_returns"], batch["loss_mask"].any(-1), self._mesh.sum)

    def _shuffled(
        self, batch: TensorDict, positions: np.ndarray, total_rows: int, seed: int
    ) -> tuple[TensorDict, list[slice]]:
        """Return the rows in the order of the mini-batches of a pass, and the rows of each mini-batch."""
        num_minibatches = min(self._config.num_minibatches, total_rows)
        mine = draw_minibatches(total_rows, num_minibatches, seed)[positions]
        # Gathering the rows once per pass makes each mini-batch a slice.
        rows = batch[torch.from_numpy(np.argsort(mine, kind="stable"))]
        ends = np.cumsum(np.bincount(mine, minlength=num_minibatches)).tolist()
        return rows, [slice(start, end) for start, end in pairwise([0, *ends])]

    def _steps_with(self, joint: Sequence["Learner"], objectives: Sequence[Objective]) -> Steps:
        """Return the steps of this model with others, the same object in every iteration."""
        learners = (self, *joint)
        if learners not in self._steps_by_learners:
            eager = EagerSteps(learners, objectives, self._config, self._mesh)
            traced = TracedSteps(learners, objectives, self._config, eager) if self._traces_steps else None
            self._steps_by_learners[learners] = traced or eager
        return self._steps_by_learners[learners]


def _merge_mean(sums_and_counts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Metric:
    value, count = (float(torch.stack(numbers).double().sum()) for numbers in zip(*sums_and_counts, strict=True))
    return mean(value / max(count, 1.0), count)
