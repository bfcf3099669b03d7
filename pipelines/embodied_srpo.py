"""Self-Referential Policy Optimization: failures are rewarded for their progress (arXiv:2511.15605)."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.policy_update import add_policy_update


def embodied_srpo() -> TaskGraph:
    """Return the graph.

    rollout → progress → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor

    Progress is measured on the trainer group, whose ranks can compare the episodes of all; ``reward`` and what follows
    are back where the episodes are, groups whole. A group whose members all failed teaches as soon as they failed
    differently, so what ``sampling`` drops as uniform is told by their scores.
    """
    pipeline = (
        Pipeline("embodied_srpo", "SRPO on episodes")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node(
            "progress",
            func="tasks:score_progress",
            deps=["rollout"],
            node_type=NodeType.MODEL_INFERENCE,
            node_role=NodeRole.REWARD,
        )
        .add_node("reward", func="tasks:compute_reward", deps=["rollout", "progress"], node_role=NodeRole.REWARD)
        .add_node(
            "sampling",
            func="tasks:embodied_sampling",
            deps=["reward"],
            node_role=NodeRole.DYNAMIC_SAMPLING,
            config={"uniform": "scores"},
        )
        .add_node("advantage", func="tasks:compute_advantage", deps=["sampling"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
