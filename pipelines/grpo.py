"""Group Relative Policy Optimization: advantages are rewards compared within a group (arXiv:2402.03300)."""

from embodyflow.graph.building_blocks import filter_groups, policy_gradient, reward
from pipelines import TaskGraph


def grpo() -> TaskGraph:
    """Return the plain graph: rollout → reward → advantage → old_log_prob → ref_log_prob → train_actor."""
    return policy_gradient("grpo", "GRPO", reward)


def embodied_grpo() -> TaskGraph:
    """Return the graph for episodes, whose outcome is known before they are rewarded.

    rollout → sampling → reward → advantage → old_log_prob → ref_log_prob → train_actor
    """
    return policy_gradient("embodied_grpo", "GRPO on episodes", filter_groups, reward)


def language_grpo() -> TaskGraph:
    """Return the graph for responses, whose outcome is their reward.

    rollout → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor
    """
    return policy_gradient("language_grpo", "GRPO on responses", reward, filter_groups)


def grpo_kl_reward() -> TaskGraph:
    """Return the graph for ``algorithm.kl.placement=reward`` (arXiv:2501.03262).

    rollout → reward → sampling → old_log_prob → ref_log_prob → kl_penalty → advantage → train_actor

    A group with one outcome differs in its KL alone, which ``grpo`` would scale up like any other difference, so
    ``sampling`` drops it. With an estimator that compares rows of all groups ``filter.drop_uniform=false`` keeps it.
    """
    return policy_gradient("grpo_kl_reward", "GRPO with the KL in the rewards", reward, filter_groups, kl="rewards")
