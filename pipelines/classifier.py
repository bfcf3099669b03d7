"""Rewards by a classifier of success, where the environment tells the success of a few episodes alone."""

from embodyflow.graph.building_blocks import add_policy_update, add_rollout
from pipelines import NodeRole, NodeType, Pipeline, TaskGraph


def embodied_classifier() -> TaskGraph:
    """Return the graph.

    rollout → classifier → reward → advantage → old_log_prob → ref_log_prob → train_actor

    The trainer group trains the classifier, since its ranks can gather the labelled episodes of all workers. No node
    filters groups, because that would read outcomes that are hidden here; a group with equal rewards has no advantage.
    """
    pipeline = Pipeline("embodied_classifier", "GRPO on episodes that a classifier of success rewards")
    rollout = add_rollout(pipeline)
    pipeline.add_node(
        "classifier",
        func="tasks:classify_success",
        deps=[rollout],
        node_type=NodeType.MODEL_INFERENCE,
        node_role=NodeRole.REWARD,
    )
    pipeline.add_node("reward", func="tasks:compute_reward", deps=[rollout, "classifier"], node_role=NodeRole.REWARD)
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
    return add_policy_update(pipeline, after="advantage").build()
