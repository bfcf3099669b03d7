"""Log-probs of the rows' tokens, recomputed by the trainer."""

from typing import Any

import torch

from embodyflow.algorithms.kl import estimate_kl
from embodyflow.data.metrics import maximum, mean, total
from embodyflow.errors import ParityError
from embodyflow.node_fields import node
from embodyflow.types import Batch, NodeOutput


@node(reads=("action_tokens", "loss_mask", "instruction_ids", "log_probs", "policy_version"), writes=("old_log_probs",))
def compute_old_log_prob(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Recompute the log-probs that the ratio is taken to, and compare them with the rollout's.

    Rows that an earlier version of the policy made keep those they were made with, which is what makes the ratio an
    importance weight (Schulman et al. 2017, arXiv:1707.06347, section 3).

    Raises:
        ParityError: rollout and trainer disagree by more than ``trainer.parity_tolerance``: they do not hold the same
            weights, or do not process observations alike.
    """
    log_probs = worker.log_probs(batch, reference=False)
    stale = batch["policy_version"] != call.policy_version
    batch["old_log_probs"] = torch.where(stale[:, None, None], batch["log_probs"], log_probs)
    gap = 0.0
    if len(batch):
        differences = (batch["old_log_probs"] - batch["log_probs"]).abs().flatten(1).amax(1)
        row = int(differences.argmax())
        gap = differences[row].item()
        tolerance = worker.config.trainer.parity_tolerance
        if not gap <= tolerance:
            raise ParityError(
                f"log-probs of row uid={batch['uid'][row].item()} differ by {gap:.3g} between rollout and trainer; "
                f"allowed is trainer.parity_tolerance={tolerance:g}"
            )
    return NodeOutput(batch, {"parity/log_prob_gap": maximum(gap), "policy/num_stale_rows": total(int(stale.sum()))})


@node(reads=("action_tokens", "loss_mask", "instruction_ids", "old_log_probs"), writes=("ref_log_probs",))
def compute_ref_log_prob(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Compute the log-probs under the reference policy, and how far the policy has moved from it (k3)."""
    batch["ref_log_probs"] = worker.log_probs(batch, reference=True)
    num_tokens = int(batch["loss_mask"].sum())
    kl = estimate_kl(batch["old_log_probs"], batch["ref_log_probs"], "k3").sum().item()
    return NodeOutput(batch, {"policy/kl_to_reference": mean(kl / max(num_tokens, 1), num_tokens)})
