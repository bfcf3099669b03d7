"""What built-in graphs end with."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.node import NodeRole, NodeType


def add_old_log_prob(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob`` to the node ``after``."""
    return _add_forward_pass(pipeline, "old_log_prob", NodeRole.ACTOR, after)


def add_value(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``value``, the critic's forward pass, to the node ``after``."""
    return _add_forward_pass(pipeline, "value", NodeRole.CRITIC, after)


def add_log_probs(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob`` to the node ``after``."""
    add_old_log_prob(pipeline, after)
    return _add_forward_pass(pipeline, "ref_log_prob", NodeRole.REFERENCE, after="old_log_prob")


def add_kl_penalty(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → kl_penalty → advantage`` to the node ``after``."""
    return (
        add_log_probs(pipeline, after)
        .add_node("kl_penalty", func="tasks:compute_kl_penalty", deps=["ref_log_prob"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["kl_penalty"], node_role=NodeRole.ADVANTAGE)
    )


def add_train_actor(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``train_actor`` to the node ``after``, whose rows have advantages and log-probs."""
    return _add_training(pipeline, "train_actor", NodeRole.ACTOR, after)


def add_policy_update(pipeline: Pipeline, after: str) -> Pipeline:
    """Append ``old_log_prob → ref_log_prob → train_actor`` to the node ``after``, which has written the advantages."""
    return add_train_actor(add_log_probs(pipeline, after), after="ref_log_prob")


def add_train_critic(pipeline: Pipeline) -> Pipeline:
    """Append ``train_critic`` to ``train_actor``."""
    return _add_training(pipeline, "train_critic", NodeRole.CRITIC, after="train_actor")


def _add_forward_pass(pipeline: Pipeline, node_id: str, role: NodeRole, after: str) -> Pipeline:
    """Append a node that uses the trainer's weights, by the function ``tasks:compute_<node_id>``."""
    func, train = f"tasks:compute_{node_id}", NodeType.MODEL_TRAIN
    return pipeline.add_node(node_id, func, [after], node_type=train, node_role=role, only_forward_compute=True)


def _add_training(pipeline: Pipeline, node_id: str, role: NodeRole, after: str) -> Pipeline:
    """Append a node that changes the trainer's weights, by the function ``tasks:<node_id>``."""
    return pipeline.add_node(node_id, f"tasks:{node_id}", [after], node_type=NodeType.MODEL_TRAIN, node_role=role)
