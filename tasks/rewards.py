"""What the episodes are worth, and how much better than their siblings they were."""

from typing import Any

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.kl import kl_penalty
from embodyflow.algorithms.shaping import place_on_last_token
from embodyflow.data.metrics import Metric, mean
from embodyflow.nodes.declarations import node
from embodyflow.types import Batch, NodeOutput


@node(reads=("success", "loss_mask"), writes=("rewards",))
def compute_reward(batch: Batch, config: Any = None, *, worker: Any = None, **kwargs: Any) -> NodeOutput:
    """Place each row's reward on its last executed token; an episode's reward is its outcome, 1 or 0."""
    return NodeOutput(*rewarded(batch, worker))


def rewarded(batch: Batch, worker: Any) -> tuple[Batch, dict[str, Metric]]:
    """Return rows with ``rewards``, and metrics of them."""
    batch, metrics, _ = judged(batch, "train", worker)
    mask, scores = batch["loss_mask"], batch.get("scores", batch["success"].float())
    batch["rewards"] = place_on_last_token(scores, mask.flatten(1)).view(mask.shape)
    score = scores.mean().item() if len(batch) else 0.0
    return batch, metrics | {"reward/score": mean(score, len(batch))}


def judged(batch: Batch, split: str, worker: Any) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
    """Return rows with their ``success``, which an episode brings with it and a response is asked for now.

    Also metrics of it, and examples for people.
    """
    if "success" in set(batch.keys()):
        return batch, {}, []
    rows, metrics, examples = worker.judge(batch, split)
    return rows, metrics, examples


@node(reads=("loss_mask", "old_log_probs", "ref_log_probs"), writes=("kl_penalty",))
def compute_kl_penalty(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Say what each token's reward loses for its KL to the reference policy, with ``algorithm.kl.placement=reward``.

    The coefficient is the trainer's, so the node runs where the trainer is: after ``compute_ref_log_prob``.
    """
    mask = batch["loss_mask"].flatten(1)
    log_probs, reference = batch["old_log_probs"].flatten(1), batch["ref_log_probs"].flatten(1)
    penalty = kl_penalty(log_probs, reference, mask, worker.kl_coef, worker.config.algorithm.kl.estimator)
    batch["kl_penalty"] = penalty.view(batch["loss_mask"].shape)
    num_tokens = int(mask.sum())
    return NodeOutput(batch, {"reward/kl_penalty": mean(penalty.sum().item() / max(num_tokens, 1), num_tokens)})


@node(reads=("rewards", "loss_mask", "group_id"), writes=("advantages", "returns"))
def compute_advantage(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Compare rows by the configured estimator, a decision being one step; a group's rows are on one rank.

    Rows that have a ``kl_penalty`` are compared by what it leaves of their rewards.
    """
    mask, rewards = batch["loss_mask"], batch["rewards"]
    if "kl_penalty" in set(batch.keys()):
        rewards = rewards - batch["kl_penalty"]
    inputs = AdvantageInputs(
        rewards=rewards.masked_fill(~mask, 0.0).sum(-1),
        mask=mask.any(-1),
        group_ids=batch["group_id"],
        values=batch.get("values", None),
        bootstrap_values=batch.get("bootstrap_values", None),
        all_reduce=worker.all_reduce,
    )
    advantages, returns = compute_advantages(inputs, worker.config.algorithm)
    batch["advantages"] = advantages.unsqueeze(-1) * mask  # a decision's tokens share its advantage
    batch["returns"] = returns
    num_tokens = int(mask.sum())
    size = batch["advantages"].abs().sum().item() / num_tokens if num_tokens else 0.0
    return NodeOutput(batch, {"advantage/abs_mean": mean(size, num_tokens)})
