"""Log-probs of the rows' tokens: those they were sampled with, the trainer's and its reference's."""

from typing import Any

import torch

from embodyflow.algorithms.kl import estimate_kl
from embodyflow.data.metrics import maximum, mean, total
from embodyflow.errors import ParityError
from embodyflow.nodes.declarations import node
from embodyflow.types import Batch, NodeOutput

CHECKED_SHARE = 1 / 16
"""Of rows whose recorded log-probs are used, so many are recomputed: a fault of weights or inputs is in all of them."""


@node(reads=("action_tokens", "loss_mask", "instruction_ids", "log_probs", "policy_version"), writes=("old_log_probs",))
def compute_old_log_prob(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Say which log-probs the ratio is taken to, and compare the trainer's with the rollout's.

    Rows that an earlier version of the policy made keep those they were made with, which is what makes the ratio an
    importance weight (Schulman et al. 2017, arXiv:1707.06347, section 3); with ``algorithm.old_log_probs=recorded``
    all rows do. With ``proximal`` none does: :mod:`embodyflow.algorithms.behavior`.

    Raises:
        ParityError: rollout and trainer disagree by more than ``trainer.parity_tolerance``: they do not hold the same
            weights, or do not process observations alike.
    """
    kind = worker.config.algorithm.old_log_probs
    checked = batch[_sampled(batch, CHECKED_SHARE)] if kind == "recorded" else batch
    log_probs = worker.log_probs(checked, reference=False)
    stale = checked["policy_version"] != call.policy_version
    importance = torch.where(stale[:, None, None], checked["log_probs"], log_probs)
    metrics = {}
    if not stale.all():
        metrics["parity/log_prob_gap"] = maximum(
            _largest_gap(checked, importance, worker.config.trainer.parity_tolerance)
        )
    if kind == "proximal":
        mask = batch["loss_mask"]
        moved = estimate_kl(batch["log_probs"], log_probs, "k3").masked_fill(~mask, 0.0).sum().item()
        metrics["policy/behavior_kl"] = mean(moved / max(int(mask.sum()), 1), int(mask.sum()))
    chosen = {"recorded": batch["log_probs"], "recomputed": importance, "proximal": log_probs}
    batch["old_log_probs"] = chosen[kind].clone()
    num_stale = int((batch["policy_version"] != call.policy_version).sum())
    return NodeOutput(batch, metrics | {"policy/num_stale_rows": total(num_stale)})


def _sampled(batch: Batch, share: float) -> torch.Tensor:
    """Return which rows are in a sample, bool [N]: of a whole batch the same, however it lies on ranks."""
    return (batch["uid"].double() * share) % 1 < share


def _largest_gap(batch: Batch, log_probs: torch.Tensor, tolerance: float) -> float:
    differences = (log_probs - batch["log_probs"]).abs().flatten(1).amax(1)
    row = int(differences.argmax())
    gap = differences[row].item()
    if not gap <= tolerance:
        raise ParityError(
            f"log-probs of row uid={batch['uid'][row].item()} differ by {gap:.3g} between rollout and trainer; "
            f"allowed is trainer.parity_tolerance={tolerance:g}"
        )
    return gap


@node(reads=("action_tokens", "loss_mask", "instruction_ids", "old_log_probs"), writes=("ref_log_probs",))
def compute_ref_log_prob(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Compute the log-probs under the reference policy, and how far the policy has moved from it (k3).

    Where nothing is done with them ``algorithm.kl.measured_share`` of the rows will do; the others' are NaN.
    """
    algorithm = worker.config.algorithm
    measured = _sampled(batch, 1.0 if algorithm.needs_reference else algorithm.kl.measured_share)
    some = batch if measured.all() else batch[measured]
    reference = worker.log_probs(some, reference=True)
    num_tokens = int(some["loss_mask"].sum())
    kl = estimate_kl(some["old_log_probs"], reference, "k3").sum().item()
    batch["ref_log_probs"] = torch.full_like(batch["old_log_probs"], torch.nan)
    batch["ref_log_probs"][measured] = reference
    return NodeOutput(batch, {"policy/kl_to_reference": mean(kl / max(num_tokens, 1), num_tokens)})
