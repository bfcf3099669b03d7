"""DAPO: GRPO that replaces groups without variance before training (arXiv:2503.14476)."""

from embodyflow.graph.building_blocks import policy_gradient, resample_groups, reward
from pipelines import TaskGraph


def dapo() -> TaskGraph:
    """Return the graph for responses, whose outcome is their reward.

    rollout → reward → dynamic_sampling → advantage → old_log_prob → ref_log_prob → train_actor
    """
    return policy_gradient("dapo", "DAPO", reward, resample_groups)


def embodied_dapo() -> TaskGraph:
    """Return the graph for episodes, whose outcome is known before they are rewarded.

    rollout → dynamic_sampling → reward → advantage → old_log_prob → ref_log_prob → train_actor
    """
    return policy_gradient("embodied_dapo", "DAPO on episodes", resample_groups, reward)
