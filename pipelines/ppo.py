"""Proximal Policy Optimization: a critic, and generalised advantage estimation (arXiv:1707.06347)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update, add_train_critic, add_value


def ppo() -> TaskGraph:
    """Return the graph.

    rollout → reward → value → advantage → old_log_prob → ref_log_prob → train_actor → train_critic
    """
    pipeline = (
        Pipeline("ppo", "PPO with a critic")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
    )
    add_value(pipeline, after="reward")
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=["value"], node_role=NodeRole.ADVANTAGE)
    return add_train_critic(add_policy_update(pipeline, after="advantage")).build()
