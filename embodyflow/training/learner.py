"""A model sharded by FSDP2 over the ranks of a torch.distributed group, and the steps that train it.

Every mean is over the *global* mini-batch: losses are weighted by counts over all ranks and micro-batches, so the
gradient does not depend on how the rows are cut.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from embodyflow.config.trainer import OptimizerConfig, TrainerConfig
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.seeding import derive_seed
from embodyflow.training.mesh import Mesh
from embodyflow.training.micro_batches import cut_by_rows, cut_by_tokens, draw_minibatches
from embodyflow.training.objectives import Objective
from embodyflow.training.sharding import clip_gradients

Totals = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]
"""Of each metric its ``(sum, count)`` in every micro-batch."""


class Learner:
    """A sharded model with its AdamW.

    Args:
        model: sharded already.
        objective: what is minimised.
        area: of its metrics, ``<area>/grad_norm`` for one.
        optimizer: learning rate and number of epochs.
        config: everything else about a step.
        mesh: that it is sharded over.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        area: str,
        optimizer: OptimizerConfig,
        config: TrainerConfig,
        mesh: Mesh,
    ) -> None:
        self.model = model
        self._objective, self._area, self._settings = objective, area, optimizer
        self._config, self._mesh = config, mesh
        self.restart()

    def restart(self) -> None:
        """Forget the optimizer's moments and how many steps it took."""
        self._parameters = [value for value in self.model.parameters() if value.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self._settings.learning_rate,
            weight_decay=self._config.weight_decay,
            eps=self._config.adam_epsilon,
            fused=True,
        )
        # Without moments to write torch.distributed.checkpoint takes a step of no length, which AdamW would count.
        for parameter in self._parameters:
            self._optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def train(
        self,
        batch: TensorDict,
        *,
        positions: np.ndarray,
        total_rows: int,
        seed: int,
        rate: float = 1.0,
        beside: Sequence["Learner"] = (),
    ) -> dict[str, Metric]:
        """Train on the rows: ``epochs`` passes of ``num_minibatches`` optimizer steps.

        Which mini-batch a row belongs to is drawn for each pass, from its position in the whole batch, so it does not
        depend on the number of ranks.

        Args:
            batch: this rank's rows, with the columns that the objective reads.
            positions: of its rows in the whole batch, int64 ``[N]``.
            total_rows: rows of the whole batch; without any, nothing is trained.
            seed: of the draw.
            rate: share of the full learning rate.
            beside: learners of other models that take the same steps, as if all minimised the sum of their losses:
                the norm that is clipped is that of all their gradients together.

        Raises:
            FloatingPointError: loss or gradient is not finite; the weights are those before the step.
        """
        steps = f"{self._area}/optimizer_steps"
        if total_rows == 0:
            return {steps: last(0)}
        learners = (self, *beside)
        for learner in learners:
            learner._set_rate(rate)
        num_minibatches = min(self._config.num_minibatches, total_rows)
        totals: Totals = defaultdict(list)
        norms = []
        for epoch in range(self._settings.epochs):
            minibatch_of = draw_minibatches(total_rows, num_minibatches, derive_seed(seed, epoch))
            mine = minibatch_of[positions]
            # The rows are gathered once for each pass; a mini-batch is a slice of them.
            shuffled = batch[torch.from_numpy(np.argsort(mine, kind="stable"))]
            ends = np.cumsum(np.bincount(mine, minlength=num_minibatches)).tolist()
            cuts = [slice(start, end) for start, end in pairwise([0, *ends])]
            norms += [_step(learners, shuffled[cut], total_rows, self._config, self._mesh, totals) for cut in cuts]
        metrics = {name: _mean_of(pairs) for name, pairs in totals.items()}
        return metrics | {f"{self._area}/grad_norm": last(float(np.mean(norms))), steps: last(len(norms))}

    def state_dict(self) -> dict[str, Any]:
        """Return weights and moments as torch.distributed.checkpoint writes them and reads them in place.

        Weights that are not trained are left out.
        """
        model, optimizer = get_state_dict(self.model, self._optimizer)
        parameters = self.model.named_parameters(remove_duplicate=False)  # a tied weight has two names
        frozen = {name for name, value in parameters if not value.requires_grad}
        return {"model": {n: value for n, value in model.items() if n not in frozen}, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo :meth:`state_dict`."""
        set_state_dict(
            self.model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(strict=False),  # what is frozen is not in it
        )

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate * self._settings.learning_rate


def _step(
    learners: Sequence[Learner], rows: TensorDict, total_rows: int, config: TrainerConfig, mesh: Mesh, totals: Totals
) -> float:
    """Take one optimizer step of every learner over this rank's rows of a mini-batch; return the gradients' norm."""
    weighed = [learner._objective.weigh(rows, total_rows, mesh.sum) for learner in learners]
    parameters = [parameter for learner in learners for parameter in learner._parameters]
    for parameter in parameters:
        parameter.grad = None
    cuts = micro_batches(rows, config, mesh)
    for cut in cuts:
        losses = []
        for learner, its_rows in zip(learners, weighed, strict=True):
            loss, metrics = learner._objective.loss(its_rows[cut] if len(cuts) > 1 else its_rows)
            losses.append(loss)
            for name, pair in metrics.items():
                totals[name].append(pair)
        # FSDP averages gradients over the parts of the batch, we want their sum.
        (sum(losses[1:], losses[0]) * mesh.num_parts).backward()
    norm = clip_gradients(parameters, config.max_grad_norm)
    for learner in learners:
        learner._optimizer.step()
    return norm


def micro_batches(rows: TensorDict, config: TrainerConfig, mesh: Mesh) -> list[slice]:
    """Return how this rank's rows are cut for one forward pass each; every rank calls it, and takes as many passes."""
    if config.micro_batch_tokens is not None:
        cuts = cut_by_tokens(_num_tokens(rows), config.micro_batch_tokens)
    else:
        cuts = cut_by_rows(len(rows), config.micro_batch_rows or max(len(rows), 1))
    # Forward and backward are collectives, so all ranks take as many as the one with the most.
    return cuts + [slice(0, 0)] * (mesh.largest(len(cuts)) - len(cuts))


def _num_tokens(rows: TensorDict) -> list[int]:
    """Return how many tokens a forward pass has of each row: its own, and its prompt's where it has one."""
    tokens: torch.Tensor = rows["loss_mask"].flatten(1).sum(1)
    numbers: list[int] = (tokens + rows.get("prompt_length", torch.zeros_like(tokens))).tolist()
    return numbers


def _mean_of(sums_and_counts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Metric:
    value, count = (float(torch.stack(numbers).double().sum()) for numbers in zip(*sums_and_counts, strict=True))
    return mean(value / max(count, 1.0), count)
