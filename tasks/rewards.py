"""What the episodes are worth, and how much better than their siblings they were."""

from typing import Any

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.kl import subtract_kl
from embodyflow.algorithms.shaping import place_on_last_token
from embodyflow.data.metrics import Metric, mean
from embodyflow.node_fields import node
from embodyflow.types import Batch, NodeOutput


@node(reads=("success", "loss_mask"), writes=("rewards",))
def compute_reward(batch: Batch, config: Any = None, *, worker: Any = None, **kwargs: Any) -> NodeOutput:
    """Give each row its reward on its last executed token; an episode's is its outcome, 1 or 0."""
    batch, metrics, _ = judged(batch, "train", worker)
    mask, scores = batch["loss_mask"], batch.get("scores", batch["success"].float())
    batch["rewards"] = place_on_last_token(scores, mask.flatten(1)).view(mask.shape)
    score = scores.mean().item() if len(batch) else 0.0
    return NodeOutput(batch, metrics | {"reward/score": mean(score, len(batch))})


def judged(batch: Batch, split: str, worker: Any) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
    """Return rows with their ``success``, which an episode brings with it and a response is asked for now.

    Also metrics of it, and examples for people.
    """
    if "success" in set(batch.keys()):
        return batch, {}, []
    rows, metrics, examples = worker.judge(batch, split)
    return rows, metrics, examples


@node(reads=("rewards", "loss_mask", "old_log_probs", "ref_log_probs"), writes=("rewards",))
def apply_kl_penalty(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Subtract the KL to the reference policy from each token's reward, for ``algorithm.kl.placement=reward``.

    The coefficient is the trainer's, so the node runs where the trainer is: after ``compute_ref_log_prob``.
    """
    mask = batch["loss_mask"]
    rewards, log_probs, reference = (batch[name].flatten(1) for name in ("rewards", "old_log_probs", "ref_log_probs"))
    settings = worker.config.algorithm.kl
    rewards, kl = subtract_kl(rewards, log_probs, reference, mask.flatten(1), worker.kl_coef, settings)
    batch["rewards"] = rewards.view(mask.shape)
    total, count = (number.item() for number in kl["policy/reference_kl"])
    return NodeOutput(batch, {"reward/kl_penalty": mean(worker.kl_coef * total / max(count, 1), count)})


@node(reads=("rewards", "loss_mask", "group_id"), writes=("advantages", "returns"))
def compute_advantage(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Compare rows by the configured estimator, a decision being one step; a group's rows are on one rank."""
    mask = batch["loss_mask"]
    inputs = AdvantageInputs(
        rewards=batch["rewards"].masked_fill(~mask, 0.0).sum(-1),
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
