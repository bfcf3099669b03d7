"""Self-Referential Policy Optimization: failures are rewarded for their progress (arXiv:2511.15605)."""

from embodyflow.graph.building_blocks import add_policy_update, add_rollout, reward_by_scores
from pipelines import NodeRole, Pipeline, TaskGraph


def embodied_srpo() -> TaskGraph:
    """Return the graph.

    rollout → progress → reward → sampling → advantage → old_log_prob → ref_log_prob → train_actor

    A group whose members all failed still teaches if they failed differently, so ``sampling`` compares scores to find
    uniform groups.
    """
    pipeline = Pipeline("embodied_srpo", "SRPO on episodes")
    rewarded = reward_by_scores(pipeline, "progress", "tasks:score_progress", add_rollout(pipeline))
    pipeline.add_node(
        "sampling",
        func="tasks:filter_groups",
        deps=[rewarded],
        node_role=NodeRole.DYNAMIC_SAMPLING,
        config={"uniform": "scores"},
    )
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=["sampling"], node_role=NodeRole.ADVANTAGE)
    return add_policy_update(pipeline, after="advantage").build()
