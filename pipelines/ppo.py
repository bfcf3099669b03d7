"""Proximal Policy Optimization: a critic, and generalised advantage estimation (arXiv:1707.06347)."""

from pipelines.builder import Pipeline
from pipelines.graph import TaskGraph
from pipelines.node import NodeRole, NodeType

INFERENCE, TRAIN = NodeType.MODEL_INFERENCE, NodeType.MODEL_TRAIN


def ppo() -> TaskGraph:
    """Return the graph.

    rollout → reward → value → advantage → old_log_prob → ref_log_prob → train_actor → train_critic
    """
    return (
        Pipeline("ppo", "PPO with a critic")
        .add_node("rollout", func="tasks:generate", node_type=INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node(
            "value",
            func="tasks:compute_value",
            deps=["reward"],
            node_type=TRAIN,
            node_role=NodeRole.CRITIC,
            only_forward_compute=True,
        )
        .add_node("advantage", func="tasks:compute_advantage", deps=["value"], node_role=NodeRole.ADVANTAGE)
        .add_node(
            "old_log_prob",
            func="tasks:compute_old_log_prob",
            deps=["advantage"],
            node_type=TRAIN,
            node_role=NodeRole.ACTOR,
            only_forward_compute=True,
        )
        .add_node(
            "ref_log_prob",
            func="tasks:compute_ref_log_prob",
            deps=["old_log_prob"],
            node_type=TRAIN,
            node_role=NodeRole.REFERENCE,
            only_forward_compute=True,
        )
        .add_node(
            "train_actor",
            func="tasks:train_actor",
            deps=["ref_log_prob"],
            node_type=TRAIN,
            node_role=NodeRole.ACTOR,
        )
        .add_node(
            "train_critic",
            func="tasks:train_critic",
            deps=["train_actor"],
            node_type=TRAIN,
            node_role=NodeRole.CRITIC,
        )
        .build()
    )
