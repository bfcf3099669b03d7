"""Proximal Policy Optimization: a critic, and generalised advantage estimation (arXiv:1707.06347)."""

from pipelines.builder import Pipeline
from pipelines.graph import TaskGraph
from pipelines.node import NodeRole, NodeType
from pipelines.policy_update import add_policy_update


def ppo() -> TaskGraph:
    """Return the graph.

    rollout → reward → value → advantage → old_log_prob → ref_log_prob → train_actor → train_critic
    """
    pipeline = (
        Pipeline("ppo", "PPO with a critic")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node(
            "value",
            func="tasks:compute_value",
            deps=["reward"],
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.CRITIC,
            only_forward_compute=True,
        )
        .add_node("advantage", func="tasks:compute_advantage", deps=["value"], node_role=NodeRole.ADVANTAGE)
    )
    return (
        add_policy_update(pipeline, after="advantage")
        .add_node(
            "train_critic",
            func="tasks:train_critic",
            deps=["train_actor"],
            node_type=NodeType.MODEL_TRAIN,
            node_role=NodeRole.CRITIC,
        )
        .build()
    )
