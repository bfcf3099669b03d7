"""Nodes that compute log-probs of the rows' tokens, under the policy in training and under its reference."""

from typing import Any

import torch

from embodyflow.algorithms.kl import estimate_kl
from embodyflow.data.metrics import Metric, maximum, mean, total
from embodyflow.errors import ParityError
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import TrainerEngine
from embodyflow.types import Batch, NodeOutput

VERSION = "token_version"

CHECKED_SHARE = 1 / 16
"""Share of the rows to recompute when recorded log-probs are used; wrong weights or inputs show in any of them."""


@node(reads=("action_tokens", "loss_mask", "instruction_ids", "log_probs", "policy_version"), writes=("old_log_probs",))
def compute_old_log_prob(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Write the denominator of the importance ratio, and compare the trainer's log-probs with the rollout's.

    Rows of an earlier version of the policy keep the log-probs they were sampled with, which makes the ratio an
    importance weight (Schulman et al. 2017, arXiv:1707.06347, section 3). Rows with ``token_version`` do so token by
    token, and the tokens of the trainer's own version are compared; with ``rollout.interrupt.cache=keep`` only those of
    rows that no older version has begun. With ``algorithm.old_log_probs=recorded``
    all rows keep theirs, with ``proximal`` none do (:mod:`embodyflow.algorithms.behavior`). With ``interpolated`` all
    do, and ``token_staleness`` says how many versions older than the trainer's the one is that sampled a token. With
    ``algorithm.top_entropy_fraction`` below 1 it also writes ``old_entropy``, the trainer's for all rows.

    Raises:
        ParityError: Rollout and trainer disagree by more than ``trainer.parity_tolerance``. They hold different
            weights, or process observations differently.
    """
    algorithm = worker.config.algorithm
    kind = algorithm.old_log_probs
    checked = batch[_sampled(batch, CHECKED_SHARE)] if kind in ("recorded", "interpolated") else batch
    if algorithm.top_entropy_fraction < 1:
        log_probs, batch["old_entropy"] = worker.log_probs_and_entropy(checked)
    else:
        log_probs = worker.log_probs(checked, reference=False)
    stale = _versions(checked) != call.policy_version
    if worker.config.rollout.keeps_cache:  # a row that an older version began has that version's keys and values
        stale = stale | (checked["policy_version"] != call.policy_version)[:, None, None]
    importance = torch.where(stale, checked["log_probs"], log_probs)
    metrics = staleness_metrics(batch, call.policy_version) if len(batch) and VERSION in set(batch.keys()) else {}
    if not stale.all():
        metrics["parity/log_prob_gap"] = maximum(
            _largest_gap(checked, importance, worker.config.trainer.parity_tolerance)
        )
    if kind == "proximal":
        mask = batch["loss_mask"]
        moved = estimate_kl(batch["log_probs"], log_probs, "k3").masked_fill(~mask, 0.0).sum().item()
        metrics["policy/behavior_kl"] = mean(moved / max(int(mask.sum()), 1), int(mask.sum()))
    if kind == "interpolated":
        batch["token_staleness"] = (call.policy_version - _versions(batch)).expand_as(batch["loss_mask"]).clone()
    chosen = {"recomputed": importance, "proximal": log_probs}
    batch["old_log_probs"] = chosen.get(kind, batch["log_probs"]).clone()
    num_stale = int((batch["policy_version"] != call.policy_version).sum())
    return NodeOutput(batch, metrics | {"policy/num_stale_rows": total(num_stale)})


def staleness_metrics(batch: Batch, version: int) -> dict[str, Metric]:
    """Return how much older than the trainer's the versions are that sampled the tokens.

    Args:
        batch: Rows with ``token_version``, at least one.
        version: Version of the trainer's policy.
    """
    mask = batch["loss_mask"]
    ages = (version - batch[VERSION]).expand_as(mask).masked_fill(~mask, 0)
    oldest, youngest = ages.flatten(1).amax(1), ages.masked_fill(~mask, int(ages.max())).flatten(1).amin(1)
    num_tokens = int(mask.sum())
    return {
        "policy/staleness_mean": mean(ages.sum().item() / max(num_tokens, 1), num_tokens),
        "policy/staleness_max": maximum(ages.max().item()),
        "policy/staleness_spread": mean((oldest - youngest).float().mean().item(), len(batch)),
    }


def _versions(batch: Batch) -> torch.Tensor:
    """Return the version that sampled each token or decided, [N, R, 1], or of a whole row, [N, 1, 1]."""
    keys = set(batch.keys())
    versions: torch.Tensor = batch[VERSION] if VERSION in keys else batch["policy_version"][:, None, None]
    return versions


def _sampled(batch: Batch, share: float) -> torch.Tensor:
    """Return a mask of sampled rows, bool [N]; it depends on their uid alone, not on the ranks they are on."""
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
def compute_ref_log_prob(batch: Batch, config: Any = None, *, worker: TrainerEngine, **kwargs: Any) -> NodeOutput:
    """Compute the log-probs under the reference policy, and the KL of the policy to it (k3).

    If no term of the algorithm reads them, only ``algorithm.kl.measured_share`` of the rows get theirs and the others
    are NaN.
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
