"""Self-Referential Policy Optimization: failures are rewarded for their progress (arXiv:2511.15605)."""

from pipelines.builder import Pipeline
from pipelines.graph import TaskGraph
from pipelines.node import NodeRole, NodeType

INFERENCE, TRAIN = NodeType.MODEL_INFERENCE, NodeType.MODEL_TRAIN


def embodied_srpo() -> TaskGraph:
    """Return the graph.

    rollout → embodied_sampling → reward → advantage → old_log_prob → ref_log_prob → train_actor
    """
    return (
        Pipeline("embodied_srpo", "SRPO on episodes")
        .add_node("rollout", func="tasks:generate", node_type=INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "embodied_sampling",
            func="tasks:embodied_sampling",
            deps=["rollout"],
            node_role=NodeRole.DYNAMIC_SAMPLING,
        )
        .add_node("reward", func="tasks:compute_reward", deps=["embodied_sampling"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
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
        .build()
    )
