"""GRPO for language models: groups are filtered by their outcome as soon as they are rewarded."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def language_grpo() -> TaskGraph:
    """Return the graph.

    rollout → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor
    """
    pipeline = (
        Pipeline("language_grpo", "GRPO on responses")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("reward", func="tasks:compute_reward", deps=["rollout"], node_role=NodeRole.REWARD)
        .add_node("sampling", func="tasks:embodied_sampling", deps=["reward"], node_role=NodeRole.DYNAMIC_SAMPLING)
        .add_node("advantage", func="tasks:compute_advantage", deps=["sampling"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
