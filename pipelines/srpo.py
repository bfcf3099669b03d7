"""Self-Referential Policy Optimization: failures are rewarded for their progress (arXiv:2511.15605)."""

from embodyflow.graph.building_blocks import add_policy_update, add_rollout
from pipelines import NodeRole, NodeType, Pipeline, TaskGraph


def embodied_srpo() -> TaskGraph:
    """Return the graph.

    rollout → progress → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor

    The trainer group measures progress, since its ranks can compare all episodes; ``reward`` and the nodes after it run
    where the episodes are, with groups whole. A group whose members all failed still teaches if they failed
    differently, so ``sampling`` compares scores to find uniform groups.
    """
    pipeline = Pipeline("embodied_srpo", "SRPO on episodes")
    rollout = add_rollout(pipeline)
    pipeline.add_node(
        "progress",
        func="tasks:score_progress",
        deps=[rollout],
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.REWARD,
    )
    pipeline.add_node("reward", func="tasks:compute_reward", deps=[rollout, "progress"], node_role=NodeRole.REWARD)
    pipeline.add_node(
        "sampling",
        func="tasks:filter_groups",
        deps=["reward"],
        node_role=NodeRole.DYNAMIC_SAMPLING,
        config={"uniform": "scores"},
    )
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=["sampling"], node_role=NodeRole.ADVANTAGE)
    return add_policy_update(pipeline, after="advantage").build()
