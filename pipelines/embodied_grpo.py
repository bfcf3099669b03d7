"""GRPO for robot policies: groups of episodes are filtered by their outcome before they are rewarded."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def embodied_grpo() -> TaskGraph:
    """Return the graph.

    rollout → embodied_sampling → reward → advantage → old_log_prob → ref_log_prob → train_actor
    """
    pipeline = (
        Pipeline("embodied_grpo", "GRPO on episodes")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "embodied_sampling",
            func="tasks:embodied_sampling",
            deps=["rollout"],
            node_role=NodeRole.DYNAMIC_SAMPLING,
        )
        .add_node("reward", func="tasks:compute_reward", deps=["embodied_sampling"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
