"""Group Relative Policy Optimization: advantages are rewards compared within a group (arXiv:2402.03300)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def grpo() -> TaskGraph:
    """Return the graph ``rollout → reward → advantage → old_log_prob → ref_log_prob → train_actor``."""
    pipeline = (
        Pipeline("grpo", "GRPO")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
