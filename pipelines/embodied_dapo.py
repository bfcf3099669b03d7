"""DAPO for robot policies: an episode is its own judge, so groups are re-rolled before they are rewarded."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def embodied_dapo() -> TaskGraph:
    """Return the graph.

    rollout → dynamic_sampling → reward → advantage → old_log_prob → ref_log_prob → train_actor
    """
    pipeline = (
        Pipeline("embodied_dapo", "DAPO on episodes")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "dynamic_sampling",
            func="tasks:dynamic_sampling",
            deps=["rollout"],
            node_type=NodeType.MODEL_INFERENCE,
            node_role=NodeRole.ROLLOUT,
        )
        .add_node("reward", func="tasks:compute_reward", deps=["dynamic_sampling"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
