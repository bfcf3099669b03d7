"""What built-in graphs end with."""

from pipelines.builder import Pipeline
from pipelines.node import NodeRole, NodeType


def add_old_log_prob(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob`` to the node ``after``."""
    return pipeline.add_node(
        "old_log_prob",
        func="tasks:compute_old_log_prob",
        deps=[after],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
        only_forward_compute=True,
    )


def add_policy_update(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → train_actor`` to the node ``after``, which has written the advantages."""
    train = NodeType.MODEL_TRAIN
    return (
        add_old_log_prob(pipeline, after)
        .add_node(
            "ref_log_prob",
            func="tasks:compute_ref_log_prob",
            deps=["old_log_prob"],
            node_type=train,
            node_role=NodeRole.REFERENCE,
            only_forward_compute=True,
        )
        .add_node(
            "train_actor",
            func="tasks:train_actor",
            deps=["ref_log_prob"],
            node_type=train,
            node_role=NodeRole.ACTOR,
        )
    )
