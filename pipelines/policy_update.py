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


def add_log_probs(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob`` to the node ``after``."""
    return add_old_log_prob(pipeline, after).add_node(
        "ref_log_prob",
        func="tasks:compute_ref_log_prob",
        deps=["old_log_prob"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.REFERENCE,
        only_forward_compute=True,
    )


def add_kl_penalty(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → kl_penalty → advantage`` to the node ``after``."""
    return (
        add_log_probs(pipeline, after)
        .add_node("kl_penalty", func="tasks:compute_kl_penalty", deps=["ref_log_prob"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["kl_penalty"], node_role=NodeRole.ADVANTAGE)
    )


def add_train_actor(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``train_actor`` to the node ``after``, whose rows have advantages and log-probs."""
    return pipeline.add_node(
        "train_actor",
        func="tasks:train_actor",
        deps=[after],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.ACTOR,
    )


def add_policy_update(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → train_actor`` to the node ``after``, which has written the advantages."""
    return add_train_actor(add_log_probs(pipeline, after), after="ref_log_prob")


def add_value(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``value``, the critic's forward pass, to the node ``after``."""
    return pipeline.add_node(
        "value",
        func="tasks:compute_value",
        deps=[after],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.CRITIC,
        only_forward_compute=True,
    )


def add_train_critic(pipeline: Pipeline) -> Pipeline:
    """Append ``train_critic`` to ``train_actor``."""
    return pipeline.add_node(
        "train_critic",
        func="tasks:train_critic",
        deps=["train_actor"],
        node_type=NodeType.MODEL_TRAIN,
        node_role=NodeRole.CRITIC,
    )
