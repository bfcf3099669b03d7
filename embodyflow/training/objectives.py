"""The losses that the trainer minimises on a mini-batch of rows, one for the policy and one for the critic."""

from collections.abc import Sequence
from typing import Protocol

import torch
from tensordict import TensorDict

from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.behavior import behavior_weights, interpolated_proximal
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.kl import estimate_kl, update_kl_coef
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.masked import AllReduce, Metrics, over_minibatches, valued_steps, whiten
from embodyflow.algorithms.objective import policy_objective, value_objective
from embodyflow.algorithms.selection import top_entropy_tokens
from embodyflow.config import RunConfig
from embodyflow.policies.base import Critic, Policy


class Objective(Protocol):
    """A loss whose gradient does not depend on how a mini-batch is split.

    Rows and added columns stay on the CPU; only the columns that the loss of a micro-batch reads go to the GPU.
    """

    def prepare(self, rows: TensorDict, cuts: Sequence[slice], total_rows: int, all_reduce: AllReduce) -> TensorDict:
        """Add columns that depend on whole mini-batches over all ranks, such as weights, to this rank's rows.

        Args:
            rows: This rank's rows of all mini-batches of a pass.
            cuts: Rows of each mini-batch, one after the other.
            total_rows: Number of rows in all mini-batches on all ranks.
            all_reduce: Function that sums over the ranks.
        """

    def loss(self, rows: TensorDict) -> tuple[torch.Tensor, Metrics]:
        """Return the loss of some prepared rows; over all rows and ranks these add up to the mini-batch's loss."""


class PolicyObjective:
    """Policy loss, KL term and entropy bonus.

    Args:
        policy: Policy in training.
        config: Run configuration.

    Attributes:
        kl_coef: Current coefficient of the KL term, the only state of the adaptive controller. The trainer sets it
            after each iteration if it is annealed.
    """

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self._policy, self._config = policy, config
        self.kl_coef = config.algorithm.kl.coef

    def prepare(self, rows: TensorDict, cuts: Sequence[slice], total_rows: int, all_reduce: AllReduce) -> TensorDict:
        """Add ``token_weights``, and the other columns of mini-batches that the loss uses; weight advantages.

        The weights are those of a mean over a full batch in which dropped rows count as zero. A mean over the remaining
        rows alone would take the largest steps where there is least to learn from: if a filter drops nearly all groups,
        a few episodes would move the policy as far as a full batch. ``algorithm.whiten=minibatch`` whitens the
        advantages, and the policy's ``advantage_weights`` multiply them.
        """
        algorithm, mask = self._config.algorithm, rows["loss_mask"].flatten(1)
        sums = over_minibatches(cuts, all_reduce)
        counts = count_tokens(mask, self._config.row_capacity, sums)
        fraction = self._config.minibatch_fraction(total_rows)
        rows["token_weights"] = token_weights(mask, algorithm.aggregation, counts) * fraction
        if algorithm.whiten == "minibatch":
            advantages = whiten(rows["advantages"].flatten(1), mask, sums)
            rows["advantages"] = advantages.to(rows["advantages"].dtype).view_as(rows["advantages"])
        if (by_token := self._config.policy.advantage_weights) is not None:
            rows["advantages"] = rows["advantages"] * rows["advantages"].new_tensor(by_token)
        old_log_probs, advantages = rows["old_log_probs"].flatten(1), rows["advantages"].flatten(1)
        selected = [
            select_tokens(old_log_probs[cut], advantages[cut], mask[cut], rows["seed"][cut], algorithm, all_reduce)
            for cut in cuts
        ]
        if found := [each for each in selected if each is not None]:
            rows["selected"] = torch.cat(found)
        if (fraction := algorithm.top_entropy_fraction) < 1:
            entropy = rows["old_entropy"].flatten(1)
            high = [top_entropy_tokens(entropy[cut], mask[cut], fraction, all_reduce) for cut in cuts]
            rows["high_entropy"] = torch.cat(high)
        if algorithm.old_log_probs == "proximal":
            rows["behavior_weights"] = behavior_weights(old_log_probs, rows["log_probs"].flatten(1), mask, algorithm)
        return rows

    def loss(self, rows: TensorDict) -> tuple[torch.Tensor, Metrics]:
        """Return the rows' share of :func:`~embodyflow.algorithms.objective.policy_objective`."""
        return self.loss_of(rows, *self._policy.evaluate(rows, self._config.rollout.temperature))

    def loss_of(self, rows: TensorDict, log_probs: torch.Tensor, entropy: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        """Return the same for log-probs and entropy that are computed already, float32 ``[N, T, L]``."""
        algorithm = self._config.algorithm
        names, present = ["old_log_probs", "advantages", "loss_mask", "token_weights"], set(rows.keys())
        names += ["ref_log_probs"] if algorithm.has_kl_loss else []
        names += [name for name in ("selected", "high_entropy", "behavior_weights") if name in present]
        read = {name: rows[name].to(log_probs.device).flatten(1) for name in names}
        mask, weights = read.pop("loss_mask"), read.pop("token_weights")
        if algorithm.old_log_probs == "interpolated":
            acted, staleness = (rows[name].to(log_probs.device).flatten(1) for name in ("log_probs", "token_staleness"))
            read["old_log_probs"] = interpolated_proximal(log_probs.flatten(1), acted, staleness)
            read["behavior_weights"] = behavior_weights(read["old_log_probs"], acted, mask, algorithm)
        inputs = LossInputs(log_probs=log_probs.flatten(1), entropy=entropy.flatten(1), mask=mask, **read)
        return policy_objective(inputs, weights, algorithm, self.kl_coef)

    def adapt_kl_coef(self, rows: TensorDict, total_rows: int, all_reduce: AllReduce) -> None:
        """Update ``kl_coef`` from an iteration's rows if it is adaptive; a collective, so every rank must call it.

        Args:
            rows: This rank's rows, with ``old_log_probs``, ``ref_log_probs`` and ``loss_mask``.
            total_rows: Number of rows on all ranks.
            all_reduce: Function that sums over the ranks.
        """
        kl = self._config.algorithm.kl
        if kl.target is None:
            return
        mask = rows["loss_mask"]
        divergence = estimate_kl(rows["old_log_probs"], rows["ref_log_probs"], kl.estimator).double()
        total, count = all_reduce(torch.stack([divergence.masked_fill(~mask, 0.0).sum(), mask.sum().double()]))
        if count > 0:
            self.kl_coef = update_kl_coef(self.kl_coef, (total / count).item(), total_rows, kl)


class ValueObjective:
    """The critic's clipped squared error, averaged over decisions, or over actions if each has a value.

    Args:
        critic: Critic in training.
        config: Run configuration.
    """

    def __init__(self, critic: Critic, config: RunConfig) -> None:
        self._critic, self._config = critic, config

    def prepare(self, rows: TensorDict, cuts: Sequence[slice], total_rows: int, all_reduce: AllReduce) -> TensorDict:
        """Add ``decision_weights``, the weights of a mean over the remaining rows' values."""
        mask = valued_steps(rows["loss_mask"], rows["values"])
        counts = count_tokens(mask, self._config.row_capacity, over_minibatches(cuts, all_reduce))
        rows["decision_weights"] = token_weights(mask, "token_mean", counts)
        return rows

    def loss(self, rows: TensorDict) -> tuple[torch.Tensor, Metrics]:
        """Return the rows' share of :func:`~embodyflow.algorithms.objective.value_objective`."""
        return self.loss_of(rows, self._critic.evaluate(rows))

    def loss_of(self, rows: TensorDict, values: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        """Return the same for values that are computed already, of the shape of the column ``values``."""
        return value_objective(
            values.flatten(1),
            rows["values"].to(values.device).flatten(1),
            rows["returns"].to(values.device).flatten(1),
            valued_steps(rows["loss_mask"], rows["values"]).to(values.device),
            rows["decision_weights"].to(values.device),
            self._config.algorithm,
        )
