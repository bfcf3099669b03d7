"""Proximal Policy Optimization with a critic and generalised advantage estimation (arXiv:1707.06347)."""

from embodyflow.graph.building_blocks import actor_critic, joint_actor_critic
from pipelines import TaskGraph


def ppo() -> TaskGraph:
    """Return the graph.

    rollout → reward → value → advantage → old_log_prob → ref_log_prob → train_actor → train_critic
    """
    return actor_critic("ppo", "PPO with a critic")


def ppo_joint() -> TaskGraph:
    """Return the graph in which policy and critic take the same optimizer steps, for ``critic.features=policy``.

    rollout → reward → value → advantage → old_log_prob → ref_log_prob → train_actor_critic
    """
    return joint_actor_critic("ppo_joint", "PPO with a critic that takes the policy's steps")


def ppo_kl_reward() -> TaskGraph:
    """Return the graph for ``algorithm.kl.placement=reward``, the KL term of RLHF (arXiv:2203.02155).

    rollout → reward → value → old_log_prob → ref_log_prob → kl_penalty → advantage → train_actor → train_critic
    """
    return actor_critic("ppo_kl_reward", "PPO with a critic and the KL in the rewards", kl="rewards")
