"""DAPO: GRPO in which groups without variance are dropped before they are learned from (arXiv:2503.14476)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def dapo() -> TaskGraph:
    """Return the graph.

    rollout → reward → dynamic_sampling → advantage → old_log_prob → ref_log_prob → train_actor
    """
    pipeline = (
        Pipeline("dapo", "DAPO")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node(
            "dynamic_sampling",
            func="tasks:dynamic_sampling",
            deps=["reward"],
            node_type=NodeType.MODEL_INFERENCE,
            node_role=NodeRole.ROLLOUT,
        )
        .add_node("advantage", func="tasks:compute_advantage", deps=["dynamic_sampling"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
