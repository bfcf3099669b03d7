"""Rewards by a classifier of success, where the environment tells the success of a few episodes alone."""

from embodyflow.graph.building_blocks import add_policy_update, add_rollout, reward_by_scores
from pipelines import NodeRole, Pipeline, TaskGraph


def embodied_classifier() -> TaskGraph:
    """Return the graph.

    rollout → classifier → reward → advantage → old_log_prob → ref_log_prob → train_actor

    The trainer group trains the classifier, since its ranks can gather the labelled episodes of all workers. No node
    filters groups, because that would read outcomes that are hidden here; a group with equal rewards has no advantage.
    """
    pipeline = Pipeline("embodied_classifier", "GRPO on episodes that a classifier of success rewards")
    rewarded = reward_by_scores(pipeline, "classifier", "tasks:classify_success", add_rollout(pipeline))
    pipeline.add_node("advantage", func="tasks:compute_advantage", deps=[rewarded], node_role=NodeRole.ADVANTAGE)
    return add_policy_update(pipeline, after="advantage").build()
